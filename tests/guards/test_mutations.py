"""Every change that a compiled model must notice, made after the tree has learnt its fast path."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kiln.runtime.guards.constant import reference
from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.runtime.guards.source import AttrSource, DictAttrSource, GlobalSource, LocalSource, TypeSource
from kiln.runtime.guards.state import current_state, state_from_word, state_to_word
from kiln.runtime.guards.tree import build_tree
from tests.guards.model_guards import module_guards, state_guard, tensor_guard
from tests.states import deterministic, in_double

SCALE = 2
SELF, X = LocalSource("self"), LocalSource("x")


class Config:
    def __init__(self) -> None:
        self.heads = 4
        self.name = "small"


class Block(torch.nn.Module):
    factor = 3

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(3)])
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE


class Setup:
    """A model, its tree and an input, after enough calls to be on the fast path."""

    def __init__(self) -> None:
        self.model = Model()
        self.x = torch.randn(2, 4)
        guards, collect = module_guards(self.model, SELF)
        config = DictAttrSource(SELF, "config")
        guards += [
            Guard(config, GuardKind.TYPE_IS, reference(Config)),
            Guard(AttrSource(config, "heads"), GuardKind.EQUALS, 4),
            Guard(GlobalSource("SCALE"), GuardKind.EQUALS, 2),
            Guard(AttrSource(TypeSource(SELF), "forward"), GuardKind.IS, reference(Model.forward)),
            tensor_guard(X, self.x),
            state_guard(),
        ]
        self.guards = guards
        self.tree = build_tree(guards, collect=collect, function=Model.forward)
        for _ in range(3):
            assert self.check()
        assert self.tree.counts()["replayed"] >= 2

    def check(self, x: torch.Tensor | None = None) -> bool:
        return self.tree.check((self.model, self.x if x is None else x), globals())

    @property
    def weight(self) -> torch.nn.Parameter:
        return self.model.blocks[1].linear.weight


def replace_by_other_shape(s: Setup) -> None:
    s.model.blocks[1].linear.weight = torch.nn.Parameter(torch.randn(5, 4))


def swap_data_dtype(s: Setup) -> None:
    s.weight.data = s.weight.data.double()


def swap_data_strides(s: Setup) -> None:
    s.weight.data = s.weight.data.t()


def set_heads(s: Setup) -> None:
    s.model.config.heads = 8


def replace_config(s: Setup) -> None:
    s.model.config = copy.copy(s.model.config)
    s.model.config.heads = 8


def replace_submodule(s: Setup) -> None:
    s.model.blocks[1].linear = torch.nn.Linear(4, 4, bias=False)


def change_class(s: Setup) -> None:
    class Other(Block):
        pass

    s.model.blocks[1].__class__ = Other


def replace_dict(s: Setup) -> None:
    s.model.blocks[1].__dict__ = dict(s.model.blocks[1].__dict__, training=False)


CHANGES: list[Callable[[Setup], Any]] = [
    replace_by_other_shape,
    swap_data_dtype,
    swap_data_strides,
    set_heads,
    replace_config,
    replace_submodule,
    change_class,
    replace_dict,
    lambda s: s.weight.requires_grad_(False),
    lambda s: s.model.half(),
    lambda s: s.model.eval(),
    lambda s: s.model.blocks[2].eval(),
    lambda s: s.model.blocks[0].register_forward_hook(lambda *a: None),
    lambda s: s.model.blocks[0].linear.register_forward_pre_hook(lambda *a: None),
    lambda s: s.model.blocks[0].register_full_backward_hook(lambda *a: None),
    lambda s: s.model.blocks[0].linear.register_parameter("more", torch.nn.Parameter(torch.zeros(1))),
    lambda s: s.model.blocks.append(Block()),
    lambda s: setattr(s.model.blocks[0], "forward", lambda x: x),
    lambda s: setattr(s.model.blocks[1].norm, "running_mean", None),
    lambda s: delattr(s.model.blocks[1], "linear"),
    lambda s: s.model.blocks[1].norm.running_mean.resize_(2),
]


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_a_changed_model_is_noticed_and_explained(change: Callable[[Setup], Any]) -> None:
    setup = Setup()
    change(setup)
    assert not setup.check()
    found = setup.tree.explain((setup.model, setup.x), globals())
    assert found is not None
    assert 0 <= found[0] < len(setup.guards)


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def changed_global() -> Iterator[None]:
    global SCALE
    SCALE = 3
    try:
        yield
    finally:
        SCALE = 2


@contextmanager
def changed_method() -> Iterator[None]:
    before = Model.forward
    Model.forward = lambda self, x: x  # type: ignore[method-assign]
    try:
        yield
    finally:
        Model.forward = before  # type: ignore[method-assign]


class FunctionMode(torch.overrides.TorchFunctionMode):
    pass


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


STATES: list[Callable[[], Any]] = [
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.autocast("cpu", torch.float16),
    in_double,
    default_device,
    deterministic,
    *(partial(sdpa_kernel, backend) for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION)),
    changed_global,
    changed_method,
    FunctionMode,
    DispatchMode,
    torch._C.DisableTorchFunction,
]


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_a_changed_state_is_noticed_and_its_end_too(state: Callable[[], Any]) -> None:
    setup = Setup()
    with state():
        assert not setup.check()
    assert setup.check()


def test_every_field_has_a_place_in_the_word() -> None:
    state = replace(
        current_state(),
        autocast_cpu=torch.uint64,
        autocast_cuda=torch.float8_e8m0fnu,
        default_dtype=torch.bfloat16,
        deterministic=3,
        function_modes=15,
        dispatch_modes=9,
        functorch=True,
        torch_function_off=2,
        other=0xBEEF,
        cuda_device=63,
        attention_off=21,
    )
    assert state_from_word(state_to_word(state)) == state
    assert state_from_word(state_to_word(replace(state, cuda_device=0, other=0))).cuda_device == 0


def test_two_autocast_dtypes_are_two_states() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        setup = Setup()
        assert setup.check()
    with torch.autocast("cpu", torch.float16):
        assert not setup.check()
    with torch.autocast("cpu", torch.bfloat16):
        assert setup.check()


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(2, 4, dtype=torch.float64),
        torch.randn(3, 4),
        torch.randn(8),
        torch.randn(4, 2).t(),
        torch.randn(2, 4, requires_grad=True),
        torch.randn(2, 4, device="meta"),
        torch.nn.Parameter(torch.randn(2, 4), requires_grad=False),
        torch.randn(2, 4).to_sparse(),
        None,
        1,
    ],
    ids=range(10),
)
def test_another_input_is_noticed(other: Any) -> None:
    setup = Setup()
    assert not setup.tree.check((setup.model, other), globals())
    assert setup.check()


def test_new_values_of_the_same_kind_pass_and_are_bound() -> None:
    setup = Setup()
    linear = setup.model.blocks[1].linear
    before = setup.tree.bindings
    linear.weight = torch.nn.Parameter(torch.randn(4, 4))
    assert setup.check()
    after = setup.tree.bindings
    assert before is not after
    assert any(parameter is linear.weight for parameter in after)
    assert not any(parameter is linear.weight for parameter in before)
    linear.weight.data = torch.randn(4, 4)
    assert setup.check()
    assert all(now is then for now, then in zip(setup.tree.bindings, after, strict=True))
    setup.model.blocks[1] = Block()
    assert setup.check()
    assert any(binding is setup.model.blocks[1].linear.weight for binding in setup.tree.bindings)


def test_writing_what_no_guard_looks_at_stays_on_the_fast_path() -> None:
    setup = Setup()
    bindings, full = setup.tree.bindings, setup.tree.counts()["full"]
    for n in range(5):
        setup.model.calls = n
        setup.model.config.name = str(n)
        globals()["NOBODY_READS_THIS"] = n
        assert setup.check()
    assert setup.tree.counts()["full"] == full
    assert setup.tree.counts()["revalidated"] >= 10
    assert all(now is then for now, then in zip(setup.tree.bindings, bindings, strict=True))
    setup.model.config.heads = 5
    assert not setup.check()


def test_one_tree_serves_many_instances() -> None:
    setup = Setup()
    others = [copy.deepcopy(setup.model) for _ in range(4)]
    for round in range(3):
        for model in [*others, setup.model]:
            assert setup.tree.check((model, setup.x), globals()), round
            assert setup.tree.bindings[0] is model.blocks[0].linear.weight
    full = setup.tree.counts()["full"]
    assert setup.tree.check((others[2], setup.x), globals())
    assert setup.tree.counts()["full"] == full
    others[1].eval()
    assert not setup.tree.check((others[1], setup.x), globals())
    assert setup.tree.check((others[2], setup.x), globals())
