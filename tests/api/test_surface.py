"""The public API: compiling, disabling, marking, queries, and errors for wrong arguments."""

from __future__ import annotations

import copy
import functools
import io
import json
import pickle
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.api.modes import warn_of_mode
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import KilnError
from kiln.symbolic import FixedMarkedDim

ROOT = Path(__file__).resolve().parents[2]


# Wrong arguments.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fullgraph": 1}, ("`fullgraph`", "True or False")),
        ({"disable": None}, ("`disable`", "True or False")),
        ({"dynamic": 1}, ("`dynamic`", "None, True or False")),
        ({"dynamic": []}, ("`dynamic`", "None, True or False")),
        ({"backend": 3}, ("`backend`", "kiln.list_backends()")),
        ({"backend": None}, ("`backend`", "kiln.list_backends()")),
        ({"backend": "inductr"}, ("`inductr`", "did you mean `inductor`")),
        ({"mode": 2}, ("`mode`", "'reduce-overhead'")),
        ({"mode": ["default"]}, ("`mode`", "'max-autotune'")),
        ({"options": 3}, ("`options`", "a dict")),
        ({"options": {"variant": 3}}, ("`variant`", "did you mean `variants`")),
        ({"options": {"cache": "yes"}}, ("`cache`", "type bool")),
    ],
)
def test_wrong_arguments_name_themselves_and_what_is_allowed(arguments: dict[str, Any], words: tuple[str, ...]) -> None:
    for use in (lambda: kiln.compile(torch.sin, **arguments), lambda: kiln.compile(**arguments)):
        with pytest.raises(KilnError) as raised:
            use()
        assert raised.value.code.startswith("KILN50")
        assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_that_tune_nothing_say_so_once(mode: str) -> None:
    warn_of_mode.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = [kiln.compile(torch.sin, mode=mode) for _ in range(2)]
    assert [str(warning.message).split()[0] for warning in caught] == ["KILN5012"]
    assert torch.equal(compiled[0](torch.ones(2)), torch.ones(2).sin())


@pytest.mark.parametrize("model", [3, "model", torch.ones(2), nn.Linear, classmethod(lambda cls: None)])
def test_what_cannot_be_compiled(model: Any) -> None:
    with pytest.raises(KilnError, match=r"KILN5003[^`]*`model`"):
        kiln.compile(model)


# What may be compiled.


def triple(x: Tensor, *, scale: float = 3.0) -> Tensor:
    """Three times."""
    return torch.sin(x) * scale


class Holder:
    factor = 2.0

    @kiln.compile(fullgraph=True)
    def method(self, x: Tensor) -> Tensor:
        return x.cos() * self.factor

    @staticmethod
    @kiln.compile
    def static(x: Tensor) -> Tensor:
        return x.cos()

    @kiln.compile
    @staticmethod
    def outer_static(x: Tensor) -> Tensor:
        return x.cos()

    @classmethod
    @kiln.compile
    def of_class(cls, x: Tensor) -> Tensor:
        return x.cos() * cls.factor

    def __call__(self, x: Tensor) -> Tensor:
        return x.tanh() * self.factor


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @kiln.compile(fullgraph=True)
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


X = torch.linspace(-1, 1, 6).reshape(2, 3)
HOLDER = Holder()
CALLABLES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "function": (kiln.compile(triple), lambda x: torch.sin(x) * 3),
    "keywords": (functools.partial(kiln.compile(triple), scale=2.0), lambda x: torch.sin(x) * 2),
    "partial": (kiln.compile(functools.partial(triple, scale=2.0)), lambda x: torch.sin(x) * 2),
    "builtin": (kiln.compile(torch.sin), torch.sin),
    "lambda": (kiln.compile(lambda x: x + 1), lambda x: x + 1),
    "method": (HOLDER.method, lambda x: x.cos() * 2),
    "bound method": (kiln.compile(HOLDER.__call__), lambda x: x.tanh() * 2),
    "object": (kiln.compile(HOLDER), lambda x: x.tanh() * 2),
    "static method": (HOLDER.static, torch.cos),
    "compiled static method": (Holder.outer_static, torch.cos),
    "class method": (Holder.of_class, lambda x: x.cos() * 2),
    "compiled twice": (kiln.compile(kiln.compile(triple)), lambda x: torch.sin(x) * 3),
    "torch function": (kiln.compile(nn.functional.gelu), nn.functional.gelu),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_what_can_be_compiled(name: str) -> None:
    compiled, original = CALLABLES[name]
    for _ in range(2):
        torch.testing.assert_close(compiled(X), original(X))


def test_a_decorated_forward() -> None:
    model, other = Decorated(), Decorated()
    for net in (model, other):
        torch.testing.assert_close(net(X), torch.relu(net.linear(X)))
    report = kiln.report_of(Decorated.forward)
    assert report.regions >= 1 and report.eager == 0
    assert sorted(model.state_dict()) == ["linear.bias", "linear.weight"]


def test_a_compiled_function_looks_like_its_original() -> None:
    compiled = kiln.compile(triple)
    assert (compiled.__name__, compiled.__doc__, compiled.__module__) == ("triple", "Three times.", __name__)
    assert compiled.__wrapped__ is triple


# Modules.


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.register_buffer("offset", torch.ones(4))
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * self.scale + self.offset  # type: ignore[operator, no-any-return]


@pytest.fixture
def pair() -> tuple[Net, Any]:
    net = Net().eval()
    return net, kiln.compile(net)


def test_module_shares_everything(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    assert type(compiled).__name__ == "Net" and isinstance(compiled, Net) and repr(compiled) == repr(net)
    assert [id(parameter) for parameter in compiled.parameters()] == [id(parameter) for parameter in net.parameters()]
    assert [name for name, _ in compiled.named_buffers()] == [name for name, _ in net.named_buffers()]
    assert list(compiled.children()) == list(net.children()) and compiled.get_submodule("first") is net.first
    assert list(compiled.state_dict()) == list(net.state_dict())
    compiled.load_state_dict({name: torch.full_like(tensor, 2) for name, tensor in net.state_dict().items()})
    assert net.offset.tolist() == [2.0] * 4
    assert vars(compiled) is vars(net)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.train(),
        lambda one: one.double(),
        lambda one: one.to(torch.float64).eval(),
        lambda one: one.requires_grad_(False),
        lambda one: setattr(one, "scale", 5.0),
        lambda one: setattr(one, "offset", torch.zeros(4)),
        lambda one: setattr(one.first, "bias", None),
        lambda one: one.apply(lambda part: [nn.init.ones_(value) for value in part.parameters(recurse=False)]),
        lambda one: one.register_forward_hook(lambda module, args, result: result * 3),
        lambda one: one.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        lambda one: one.first.register_forward_hook(lambda module, args, result: result * 3),
        lambda one: one.register_module("second", nn.Identity()),
    ],
)
@pytest.mark.parametrize("through_twin", [False, True])
def test_changes_after_a_call_are_noticed(pair: tuple[Net, Any], change: Any, through_twin: bool) -> None:
    net, compiled = pair
    compiled(X)
    change(compiled if through_twin else net)
    x = X.to(net.first.weight.dtype)
    expected = copy.deepcopy(net)(x)
    torch.testing.assert_close(compiled(x), expected)


def test_backward_hooks_after_a_call(pair: tuple[Net, Any]) -> None:
    _net, compiled = pair
    compiled(X).sum().backward()
    seen: list[Any] = []
    compiled.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].shape))
    compiled(X).sum().backward()
    assert seen == [torch.Size([2, 4])]


def test_pickle_copy_and_save(pair: tuple[Net, Any]) -> None:
    net, compiled = pair
    compiled(X)
    loaded = pickle.loads(pickle.dumps(compiled))
    assert type(loaded) is Net
    torch.testing.assert_close(loaded(X), net(X))
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Net
    for other in (copy.deepcopy(compiled), copy.copy(compiled)):
        torch.testing.assert_close(other(X), net(X))
    assert copy.deepcopy(compiled).first is not net.first


def test_a_compiled_module_inside_another() -> None:
    inner = Net().eval()
    outer = nn.Sequential(nn.Linear(3, 3), kiln.compile(inner)).eval()
    whole = kiln.compile(outer)
    expected = inner(outer[0](X))
    for net in (outer, whole):
        torch.testing.assert_close(net(X), expected)
    assert sorted(outer.state_dict()) == sorted(nn.Sequential(nn.Linear(3, 3), inner).state_dict())


# Disabled functions, marks, questions.


def marked(x: Tensor) -> Tensor:
    return x * (1.0 if kiln.is_compiling() else -1.0)


def test_disable_forms() -> None:
    plain, late, with_reason = kiln.disable(marked), kiln.disable()(marked), kiln.disable(reason="slow")(marked)
    for disabled in (plain, late, with_reason, kiln.disable(marked, recursive=False)):
        assert disabled.__name__ == "marked"
        compiled = kiln.compile(lambda x, disabled=disabled: disabled(x + 1) + 1)
        assert torch.equal(compiled(X), -(X + 1) + 1)
        assert len(kiln.report_of(compiled).breaks) == 1
    with pytest.raises(KilnError, match="`model`"):
        kiln.disable(3)


def test_disable_reaches_what_the_function_calls() -> None:
    inner = kiln.compile(marked)
    assert torch.equal(kiln.disable(lambda x: inner(x))(X), -X)
    assert torch.equal(kiln.disable(lambda x: inner(x), recursive=False)(X), X)
    assert torch.equal(inner(X), X)


def test_a_disabled_module() -> None:
    net = Net().eval()
    disabled = kiln.disable(net)
    assert isinstance(disabled, Net) and disabled.first is net.first and type(copy.deepcopy(disabled)) is not Decorated
    model = nn.Sequential(nn.Linear(3, 3), disabled).eval()
    compiled = kiln.compile(model)
    torch.testing.assert_close(compiled(X), model(X))
    assert kiln.report_of(compiled).breaks
    assert type(pickle.loads(pickle.dumps(disabled))) is Net


def test_marks_of_torch() -> None:
    """`torch.compiler.disable` leaves an attribute; sizes are marked on the tensor. Neither needs torch's compiler."""

    def inner(x: Tensor) -> Tensor:
        return marked(x)

    inner._torchdynamo_disable = True  # type: ignore[attr-defined]
    compiled = kiln.compile(lambda x: inner(x * 2))
    assert torch.equal(compiled(X), -(X * 2))
    rows = kiln.compile(lambda x: x * 2, dynamic=None)
    for count in (2, 3, 4):
        x = torch.ones(count, 3)
        x._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
        rows(x)
    assert kiln.report_of(rows).compiles == 1


def test_backends_are_registered_by_name() -> None:
    calls: list[int] = []

    def counting(module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        calls.append(len(example_inputs))
        return module.forward

    kiln.register_backend(name="counting for a test")(counting)
    assert "counting for a test" in kiln.list_backends() and "kiln" in kiln.list_backends()
    assert kiln.list_backends() == sorted(kiln.list_backends())
    assert torch.equal(kiln.compile(lambda x: x + 1, backend="counting for a test")(X), X + 1) and calls == [1]


def test_explain_text_and_json() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(12):
            time.sleep(0)
            x = x + 1 if x.sum() > -1000 else x
        return x

    report = kiln.explain(function)(X)
    assert len(str(report).splitlines()) <= 20
    data = json.loads(report.to_json())
    assert data["schema"] == 1
    assert {
        "name", "regions", "compiles", "loaded", "eager", "kernels", "launches", "library_calls", "bytes_read",
        "bytes_written", "guards", "unsaved", "notes", "breaks", "seconds", "total_seconds",
    } <= set(data)  # fmt: skip
    assert (
        set(data["breaks"][0]) == {"code", "where", "reason", "hint"}
        and "test_surface.py" in data["breaks"][0]["where"]
    )


# The native layer.


def test_the_native_layer_loads_before_torch_is_imported() -> None:
    program = "from kiln.native import problem; assert not problem(), problem()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Without the native layer.

WITHOUT = """
    import sys, types, warnings
    {block}
    import kiln
    import torch
    warnings.simplefilter("always")
    with warnings.catch_warnings(record=True) as seen:
        function = lambda x: torch.sin(x) + 1
        assert kiln.compile(function) is function
        model = torch.nn.Linear(2, 2)
        assert kiln.compile(model) is model and kiln.compile(fullgraph=True)(model) is model
    assert len(seen) == 1 and "KILN5011" in str(seen[0].message) and "{reason}" in str(seen[0].message), seen
    try:
        kiln.compile(function, mode="quick")
    except Exception as problem:
        assert "`mode`" in str(problem)
    else:
        raise AssertionError
    report = kiln.explain(function)(torch.ones(2))
    assert "{reason}" in str(report) and report.eager == 1
    kiln.reset()
    assert not kiln.is_compiling() and kiln.disable(function) is function and "kiln" in kiln.list_backends()
    assert not [name for name in sys.modules if name.startswith("kiln.pipeline")]
    print("fine")
"""


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("sys.modules['kiln.native._frames'] = None", "cannot be loaded"),
        ("sys.modules['kiln.native._executor'] = None", "cannot be loaded"),
        (
            "sys.modules['kiln.native._frames'] = types.SimpleNamespace(usable=False, problem='torch 9.9 is strange')",
            "torch 9.9 is strange",
        ),
    ],
)
def test_without_the_native_layer(block: str, reason: str) -> None:
    program = textwrap.dedent(WITHOUT).format(block=block, reason=reason)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_a_dimension_that_is_marked_dynamic_and_fixed_is_an_error() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] == 4 else x

    x = torch.ones(4, 3)
    x._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
    with pytest.raises(FixedMarkedDim, match=r"KILN2104[\s\S]*dimension 0 of `x`[\s\S]*fixes it to 4"):
        kiln.compile(function, fullgraph=True)(x)
    with pytest.warns(KilnWarning, match="KILN2104"):
        assert torch.equal(kiln.compile(function)(x), x + 1)


@pytest.mark.parametrize("target", [functools.partial(torch.mul, other=4), torch.sin, torch.nn.functional.gelu])
def test_callables_that_are_no_functions_are_compiled(target: Any) -> None:
    compiled, x = kiln.compile(target, fullgraph=True), torch.randn(3)
    torch.testing.assert_close(compiled(x), target(x))
    assert kiln.report_of(compiled).regions == 1


def test_a_compiled_method_called_by_another() -> None:
    class Scale(nn.Module):
        factor = 3

        @functools.partial(kiln.compile, fullgraph=True)
        def forward(self, x: Tensor) -> Tensor:
            return self.helper(x) + 1

        @kiln.compile
        def helper(self, x: Tensor) -> Tensor:
            return x * self.factor

    torch.testing.assert_close(Scale()(torch.ones(2)), torch.full((2,), 4.0))
