"""Programs as `torch.export.ExportedProgram`: torch's own consumers take them, and their programs come back."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.testing import assert_close

import kiln
from kiln.programs.call.errors import NoTorchExport
from kiln.programs.call.tree import Tree
from kiln.programs.torch_export import classes_in, wanted_size
from tests.packages.samples import Decoder, counted, shared
from tests.programs.models import Classifier, Counter, Loss
from tests.programs.test_files import Everything

BATCH = torch.export.Dim("batch", min=2, max=64)
pytestmark = pytest.mark.filterwarnings("ignore")

Call = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    """A program computes without them; an exported one as its caller wants."""
    with torch.no_grad():
        yield


def halves(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """A size with a quotient, and a constraint: the batch is even."""
    return x.view(x.shape[0] // 2, 2, -1).sum(1) + y, x.shape[0] // 2


class Pair(nn.Module):
    """Nested arguments and results, a derived size."""

    def forward(self, x: Tensor, others: list[Tensor], scale: float = 2.0) -> Any:
        return {"product": x @ x.T, "rows": others[0].shape[0]}, [others[0][1:] * scale]


def summed(*tensors: Tensor, bias: Tensor) -> tuple[Tensor, torch.Size]:
    return torch.cat(tensors).sum(0) + bias, tensors[1].shape


@dataclass
class Unregistered:
    x: Tensor


def call(*args: object, **kwargs: object) -> Call:
    return args, kwargs


class Layers(nn.Module):
    """Grouped attention, a recurrent layer, a resized image and a spectrum: copies in layouts of symbolic sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.layer = nn.Linear(8, 4), nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, _ = x.shape
        heads = self.keys(x).view(batch, length, 1, 4).transpose(1, 2).repeat_interleave(2, 1)
        products = (x.view(batch, length, 2, 4).transpose(1, 2) @ heads.mT).softmax(-1) @ heads
        image = nn.functional.interpolate(x.unsqueeze(1), size=(length + 3, 9), mode="bilinear")
        spectrum = torch.stft(x.flatten(1), 16, window=torch.ones(16), return_complex=True).abs()
        return products.transpose(1, 2).flatten(2), self.layer(x)[0].flatten(0, 1), image, spectrum, self.encoder(x)


class Branching(nn.Module):
    """A branch that reads a size which no operand has, in a branch; a parameter, and a result that is an operand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        def inner(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.cond(x.max() > 2, lambda y: self.layer(y) * rows.shape[0], lambda y: y + 1, (y,))
            return y, x.clone()

        return torch.cond(x.sum() > 0, inner, lambda x, y: (y * torch.tensor([1.0, 2.0, 3.0, 4.0]), x - 1), (x, x * 2))


class Loops(nn.Module):
    """A loop with a value from outside, and a scan over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, state: Tensor, turns: Tensor) -> tuple[Any, ...]:
        turned = torch.while_loop(
            lambda i, y: i < turns, lambda i, y: (i + 1, torch.tanh(self.layer(y)) + state.sum()), (torch.tensor(0), x)
        )[1]
        return turned, *scan(lambda h, row: (torch.tanh(h + row), h * row), state, x)


class OwnKernels(nn.Module):
    """What torch has CPU operators of its own for: LSTM in both directions, attention with shared heads."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, bidirectional=True, bias=False, batch_first=True)

    def forward(self, x: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        y, (h, c) = self.lstm(x)
        attend = nn.functional.scaled_dot_product_attention
        heads = attend(y.unflatten(2, (4, 4)).transpose(1, 2), keys, keys + 1, is_causal=True, enable_gqa=True)
        return h + c, heads.transpose(1, 2)


DIM = kiln.Dim("batch", min=2, max=64)
# fmt: off
MODELS: dict[str, tuple[Callable[[], Any], Call, Any, Call]] = {
    # name         model             exported with, dynamic shapes, called with
    "classifier": (Classifier,       call(torch.randn(6, 16), mask=torch.ones(6, 8)),
                   {"x": {0: DIM}, "mask": {0: DIM}},
                   call(torch.randn(9, 16), mask=torch.ones(9, 8))),
    "counter":    (Counter,          call(torch.ones(2, 4)), None, call(torch.randn(2, 4))),
    "decoder":    (Decoder,          call(torch.randn(1, 8), torch.tensor([0])), None,
                   call(torch.randn(1, 8), torch.tensor([3]))),
    "constants":  (Everything,       call(torch.randn(6, 3), torch.float64, 2.0, "n"), None,
                   call(torch.randn(6, 3), torch.float64, 2.0, "n")),
    "shared":     (lambda: shared,   call(torch.ones(4, 3), torch.ones(2)), {"x": {0: DIM}},
                   call(torch.ones(7, 3), torch.ones(2))),
    "data":       (lambda: counted,  call(torch.tensor([1, 0, 3])), None, call(torch.tensor([2, 2, 3]))),
    "halves":     (lambda: halves,   call(torch.randn(4, 6), torch.ones(2, 6)),
                   {"x": {0: DIM}, "y": {0: kiln.Dim.AUTO}},
                   call(torch.randn(10, 6), torch.ones(5, 6))),
    "layers":     (Layers,           call(torch.randn(2, 6, 8)),
                   {"x": {0: kiln.Dim("batch"), 1: kiln.Dim("length", min=4)}},
                   call(torch.randn(1, 9, 8))),
    "rest":       (lambda: summed,   call(torch.ones(2, 3), torch.ones(4, 3), bias=torch.ones(3)), None,
                   call(torch.randn(2, 3), torch.randn(4, 3), bias=torch.randn(3))),
    "branching":  (Branching,        call(torch.ones(6, 4), torch.ones(3)),
                   {"x": {0: DIM}, "rows": {0: kiln.Dim("rows")}},
                   call(3 * torch.ones(3, 4), torch.ones(5))),
    "negative":   (Branching,        call(torch.ones(6, 4), torch.ones(3)), None,
                   call(-torch.ones(6, 4), torch.ones(3))),
    "loops":      (Loops,            call(torch.randn(6, 3), torch.randn(3), torch.tensor(2)), {"x": {0: DIM}},
                   call(torch.randn(4, 3), torch.randn(3), torch.tensor(4))),
    "kernels":    (OwnKernels,       call(torch.randn(3, 5, 6), torch.randn(3, 2, 5, 4)),
                   {"x": {0: DIM}, "keys": {0: DIM}}, call(torch.randn(4, 5, 6), torch.randn(4, 2, 5, 4))),
    "pair":       (Pair,             call(torch.randn(6, 4), [torch.randn(13)]),
                   {"x": {0: DIM}, "others": [{0: 2 * DIM + 1}]},
                   call(torch.randn(3, 4), [torch.randn(7)])),
}
# fmt: on


def exported(name: str) -> tuple[kiln.Program, Any, Call]:
    """The program, a copy of its model, and a call."""
    make, (args, kwargs), shapes, given = MODELS[name]
    model = make()
    expected = copy.deepcopy(model)
    return kiln.export(model, args, kwargs, dynamic_shapes=shapes), expected, given


def run(function: Callable[..., Any], given: Call) -> tuple[list[Any], Call]:
    """The results' leaves, and the arguments as they are afterwards."""
    args, kwargs = copy.deepcopy(given)
    return torch.utils._pytree.tree_leaves(function(*args, **kwargs)), (args, kwargs)


def same(function: Callable[..., Any], expected: Callable[..., Any], given: Call) -> None:
    for _ in range(2):  # a second call sees what the first has changed
        (found, left), (wanted, changed) = run(function, given), run(expected, given)
        assert [type(item) for item in found] == [type(item) for item in wanted]
        for item, other in zip(found, wanted, strict=True):
            assert_close(item, other, equal_nan=True) if isinstance(other, Tensor) else None
            assert isinstance(other, Tensor) or item == other
        leaves = [torch.utils._pytree.tree_leaves(each) for each in (left, changed)]
        for item, other in zip(*leaves, strict=True):
            assert_close(item, other) if isinstance(other, Tensor) else None


@pytest.mark.parametrize("name", MODELS)
def test_torch_runs_our_programs(name: str) -> None:
    program, expected, given = exported(name)
    made = program.to_torch_export()
    same(made.module(), expected, given)


@pytest.mark.parametrize("name", ["counter", "halves", "data", "branching", "negative", "loops"])
def test_torch_saves_and_lowers_our_programs(name: str) -> None:
    program, expected, given = exported(name)
    file = io.BytesIO()
    torch.export.save(program.to_torch_export(), file)
    file.seek(0)
    same(torch.export.load(file).run_decompositions().module(), expected, given)


@pytest.mark.parametrize("name", ["classifier", "branching"])
def test_torch_makes_modules_of_our_programs(name: str) -> None:
    program, expected, given = exported(name)
    same(torch.export.unflatten(program.to_torch_export()), expected, given)


def test_names_sizes_and_changes_are_those_of_the_program() -> None:
    made = exported("counter")[0].to_torch_export()
    assert dict(made.state_dict).keys() == Counter().state_dict().keys()
    assert made.graph_signature.buffers_to_mutate and [*made.graph_signature.non_persistent_buffers] == ["scale"]
    sizes = exported("classifier")[0].to_torch_export().range_constraints
    assert [(int(each.lower), int(each.upper)) for each in sizes.values()] == [(2, 64)]
    training = kiln.export(Loss(), (torch.randn(7, 6), torch.randn(7, 3)), training=True)
    loss, gradients = training.to_torch_export().module()(torch.ones(7, 6), torch.ones(7, 3))
    assert_close((loss, gradients), training(torch.ones(7, 6), torch.ones(7, 3)))


def test_sizes_that_the_program_forbids_are_refused() -> None:
    module = exported("halves")[0].to_torch_export().module()
    with pytest.raises(RuntimeError):
        module(torch.randn(5, 6), torch.ones(2, 6))


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("name", ["classifier", "counter", "decoder", "pair"])
def test_programs_of_torch_come_back(name: str, functional: bool) -> None:
    make, (args, kwargs), shapes, given = MODELS[name]
    dims = {"classifier": {"x": {0: BATCH}, "mask": {0: BATCH}},
            "pair": {"x": {0: BATCH}, "others": [{0: 2 * BATCH + 1}]}}.get(name)  # fmt: skip
    model = make()
    expected = copy.deepcopy(model)
    made = torch.export.export(model, args, kwargs, dynamic_shapes=dims)
    program = kiln.Program.from_torch_export(made.run_decompositions() if functional else made)
    same(program, expected, given)
    assert program.state_dict().keys() == expected.state_dict().keys()
    assert bool(program.constraints) == (shapes is not None)


@pytest.mark.parametrize("name", ["pair", pytest.param("layers", marks=pytest.mark.slow), "branching", "loops"])
def test_there_and_back(tmp_path: Any, name: str) -> None:
    program, expected, given = exported(name)
    again = kiln.Program.from_torch_export(program.to_torch_export())
    again.package(tmp_path / "m")
    same(kiln.load(tmp_path / "m"), expected, given)


class Moving(nn.Module):
    """A parameter that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.w.add_(1)


def frames(x: Tensor) -> Tensor:
    return x[:, : x.shape[1] // 16 * 16].reshape(x.shape[0], -1, 16).sum(-1)


def mirrored(x: Tensor) -> Tensor:
    return nn.functional.pad(x, (32, 32), mode="reflect")


@pytest.mark.parametrize("target", [frames, mirrored])
def test_torch_gets_the_sizes_of_the_example(target: Any) -> None:
    """With small ones it would take other sides of questions about sizes, or raise."""
    x = torch.randn(3, 480)
    program = kiln.export(target, (torch.randn(2, 400),), dynamic_shapes=({0: kiln.Dim.AUTO, 1: kiln.Dim.AUTO},))
    exported = program.to_torch_export()
    torch.testing.assert_close(exported.module()(x), target(x))
    torch.testing.assert_close(kiln.Program.from_torch_export(exported)(x), target(x))


def test_what_has_no_form_there_says_so() -> None:
    with pytest.raises(NoTorchExport, match="changes the parameter or constant `w`"):
        kiln.export(Moving(), (torch.ones(2),)).to_torch_export()
    with pytest.raises(NoTorchExport, match=r"call torch.export.register_dataclass\(Unregistered\)"):
        kiln.export(lambda x: Unregistered(x + 1), (torch.ones(2),)).to_torch_export()


def test_onnx() -> None:
    pytest.importorskip("onnxscript")
    program = exported("classifier")[0]
    made = torch.onnx.export(program.to_torch_export(), (), dynamo=True)
    assert made is not None and [each.name for each in made.model.graph.inputs] == ["x", "mask"]


def test_public_operators_are_written() -> None:
    """Those that other readers know, such as `torch.onnx.export`."""
    program, expected, given = exported("kernels")
    made = program.to_torch_export()
    calls = [str(node.target) for node in made.graph.nodes if node.op == "call_function"]
    assert calls.count("aten.lstm.input") == 4 and calls.count("aten.scaled_dot_product_attention.default") == 1
    assert not [call for call in calls if "mkldnn" in call or "_for_cpu" in call]
    same(kiln.Program.from_torch_export(made), expected, given)


class Resized(nn.Module):
    """Sizes of images as numbers of the graph."""

    def forward(self, x: Tensor) -> Any:
        half = nn.functional.avg_pool2d(x, 2)
        resize = nn.functional.interpolate
        return x + resize(half, size=x.shape[-2:], mode="bilinear"), resize(half, scale_factor=2.0), x @ x.mT


class Cells(nn.Module):
    """The layers of torch are one operator there."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.layer = nn.LSTMCell(4, 6), nn.GRU(6, 5, batch_first=True)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        rows = []
        for step in range(3):
            state = self.cell(x[:, step], state)
            rows.append(state[0])
        return self.layer(torch.stack(rows, 1)), state


class Signal(nn.Module):
    def forward(self, x: Tensor) -> Any:
        window = torch.hann_window(16)
        made = torch.stft(x, 16, 8, window=window, return_complex=True)
        return made.abs(), torch.istft(made, 16, 8, window=window), torch.nn.functional.one_hot(x.argmax(-1), 80)


class Halves(nn.Module):
    """Parts in other modes, and a loop over rows."""

    def forward(self, x: Tensor, w: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = (x @ w).float()
        return torch._higher_order_ops.map(lambda row, w: row @ w, made, w)  # type: ignore[attr-defined]


class Quantised(nn.Module):
    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        made = (x / 0.1).round().to(torch.int8).to(torch.int32)
        return (made[:, :, None] * w.to(torch.int32)).sum(1).float() * 0.1


AUTO = torch.export.Dim.AUTO
CELLS = [(torch.randn(rows, 3, 4), (torch.randn(rows, 6), torch.randn(rows, 6))) for rows in (2, 5)]
FROM_TORCH: dict[str, tuple[nn.Module, list[tuple[Any, ...]], Any]] = {
    "conversions": (Quantised(), [(torch.randn(3, 4), torch.randint(-9, 9, (4, 5)).to(torch.int8))] * 2, None),
    "images": (Resized(), [(torch.randn(1, 2, *sizes),) for sizes in ((16, 12), (24, 32))], ({2: AUTO, 3: AUTO},)),
    "cells": (Cells(), CELLS, ({0: AUTO}, ({0: AUTO}, {0: AUTO}))),
    "signals": (Signal(), [(torch.randn(2, 64),)] * 2, None),
    "modes": (Halves(), [(torch.randn(5, 4), torch.randn(4, 4))] * 2, None),
}


@pytest.mark.parametrize("name", FROM_TORCH)
def test_operators_of_torch_programs_come_back(name: str) -> None:
    model, calls, shapes = FROM_TORCH[name]
    made = torch.export.export(model, calls[0], dynamic_shapes=shapes)
    program = kiln.Program.from_torch_export(made)
    for args in calls:
        assert_close(program(*args), model(*args))


def test_a_check_of_linalg_comes_back() -> None:
    program = kiln.export(lambda a, b: torch.linalg.solve(a, b), (torch.eye(3) * 2, torch.ones(3)))
    again = kiln.Program.from_torch_export(program.to_torch_export())
    assert_close(again(torch.eye(3), torch.ones(3)), torch.ones(3))
    with pytest.raises(RuntimeError, match="singular"):
        again(torch.zeros(3, 3), torch.ones(3))


@torch.library.custom_op("kiln_tests::accumulate", mutates_args=("total", "parts"))
def accumulate(total: Tensor, parts: list[Tensor], x: Tensor, scale: float = 1.0) -> Tensor:
    total.add_(x * scale)
    for part in parts:
        part.mul_(2)
    return x + 1


@accumulate.register_fake
def _(total: Tensor, parts: list[Tensor], x: Tensor, scale: float = 1.0) -> Tensor:
    return torch.empty_like(x)


class Accumulates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        parts = [x * 2, x * 3]
        made = accumulate(self.total, parts, x, scale=0.5)
        return made + parts[0] - parts[1] + self.total


def test_operators_that_write_to_arguments_go_there_and_back() -> None:
    there, decomposed = [kiln.export(Accumulates(), (torch.ones(3),)).to_torch_export() for _ in range(2)]
    back = kiln.Program.from_torch_export(decomposed.run_decompositions())
    for run in (there.module(), back):
        original = Accumulates()
        for x in (torch.ones(3), torch.randn(3)):
            assert_close(run(x), original(x))


def test_a_constant_that_torch_has_lost_is_named() -> None:
    try:
        made = torch.export.export(Differentiated(), (torch.ones(4),))
    except AssertionError:
        pytest.skip("torch 2.11 does not export it")
    with pytest.raises(kiln.KilnError, match=r"its constant .* has no value"):
        kiln.Program.from_torch_export(made)


class Differentiated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.func.grad(lambda row: row.sin().sum())(x)


def test_arguments_that_torch_does_not_keep_are_named() -> None:
    program = kiln.export(lambda x, part: x[part] * 2, (torch.arange(4.0), slice(1, 3)))
    torch.testing.assert_close(program(torch.ones(4), slice(1, 3)), torch.full((2,), 2.0))
    with pytest.raises(NoTorchExport, match="its argument `part` is a slice"):
        program.to_torch_export()


def test_classes_of_a_tree_are_those_of_dataclasses() -> None:
    leaf = Tree()
    own = Tree(Fraction, (Tree(dict, (leaf,), ("a",)), Tree(OrderedDict, (leaf,), ("a",)), leaf), ("a", "b", "c"))
    assert [*classes_in(own)] == [Fraction] and [*classes_in(Tree(tuple, (own, own)))] == [Fraction] * 2


def test_sizes_that_are_not_linear_in_a_symbol_have_no_name() -> None:
    n = sympy.Symbol("n", integer=True)
    exported: Any = SimpleNamespace(range_constraints={})
    for expr in (n**2, n**2 + 1, n / 2 + 1, n * sympy.Symbol("m", integer=True), n**3 + n):
        node: Any = SimpleNamespace(expr=expr)
        assert wanted_size(torch.SymInt(node), exported) is kiln.Dim.AUTO
