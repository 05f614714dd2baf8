"""`kiln.export`: what the program computes, what it says of itself, what cannot be exported."""

from __future__ import annotations

import copy
import functools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import kiln
from kiln.graph.ir.verify import verify
from kiln.programs.call.errors import ExportChangesObject
from kiln.programs.dims import fixed_problem
from kiln.support.errors import KilnError
from kiln.support.location import Location
from kiln.symbolic import ShapeEnv, rel_eq
from tests.programs.models import Classifier, Counter, Loss

BATCH = kiln.Dim("batch", min=2, max=64)


def same_results(found: Any, expected: Any) -> None:
    """Equal containers, tensors that are close, other leaves that are equal."""
    (leaves, tree), (others, structure) = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    assert tree == structure
    for leaf, other in zip(leaves, others, strict=True):
        if isinstance(other, Tensor):
            assert_close(leaf, other, check_stride=True)
        else:
            assert leaf == other


def check(program: kiln.Program, target: Any, *args: Any, **kwargs: Any) -> None:
    """The program computes what the original does, and changes its state in the same way."""
    verify(program.graph, after="export")
    other, given = copy.deepcopy((target, (args, kwargs)))
    expected = other(*given[0], **given[1])
    found = program(*args, **kwargs)
    same_results(found, expected)
    assert_close((args, kwargs), given)
    if isinstance(other, nn.Module):
        assert_close(dict(program.state_dict()), dict(other.state_dict()))


def test_a_program_runs_and_says_what_it_is(golden: Callable[..., None]) -> None:
    model = Classifier()
    shapes = {"x": {0: BATCH}, "mask": {0: BATCH}}
    program = kiln.export(model, (torch.randn(6, 16),), {"mask": torch.ones(6, 8)}, dynamic_shapes=shapes)
    for rows in (2, 6, 9):
        check(program, model, torch.randn(rows, 16), mask=torch.randn(rows, 8))
        check(program, model, torch.randn(rows, 16), torch.randn(rows, 8))
    assert program.constraints == ["2 <= batch <= 64"]
    assert program.check_shapes(torch.randn(7, 16), mask=torch.ones(7, 8)) == {"batch": 7}
    text = program.text("prims")
    golden("\n".join(line.partition("  # ")[0] for line in text.split("\n")))
    assert "tests/programs/models.py" in text


def test_levels() -> None:
    x = torch.randn(6, 16)
    program = kiln.export(Classifier(), (x,), level="torch")
    assert "torch._C._nn.linear" in program.text()
    assert "torch.ops.aten.addmm.default" in program.text("core")
    assert "aten.addmm.default(%" in program.text("prims")
    assert [node.op for node in program.graph_module.graph.nodes][-1] == "output"
    inputs = [*program.state.values(), x]
    assert_close(program.core_module(*inputs)[0], program(x)["logits"])


@pytest.mark.parametrize(
    ("problem", "args", "kwargs"),
    [
        ("dimension 1 of `x` is 17: it must be 16", (torch.ones(4, 17),), {"mask": torch.ones(4, 8)}),
        ("dimension 0 of `mask` is 5: it must be batch = 4", (torch.ones(4, 16),), {"mask": torch.ones(5, 8)}),
        ("batch is 1: its range is 2 <= batch <= 64", (torch.ones(1, 16),), {"mask": torch.ones(1, 8)}),
        ("must be a tensor f32[batch, 16]", (3,), {"mask": torch.ones(4, 8)}),
        ("torch.float64", (torch.ones(4, 16, dtype=torch.float64),), {"mask": torch.ones(4, 8)}),
        ("`x` is missing", (), {"mask": torch.ones(4, 8)}),
        ("no argument `maks`", (torch.ones(4, 16),), {"maks": torch.ones(4, 8)}),
        ("`x` is given twice", (torch.ones(4, 16),), {"x": torch.ones(4, 16)}),
        ("their structure", (torch.ones(4, 16),), {"mask": [torch.ones(4, 8)]}),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(problem: str, args: Any, kwargs: Any) -> None:
    shapes = {"x": {0: BATCH}, "mask": {0: BATCH}}
    program = kiln.export(Classifier(), (torch.randn(6, 16),), {"mask": torch.ones(6, 8)}, dynamic_shapes=shapes)
    for use in (program, program.check_shapes):
        with pytest.raises(ValueError, match="KILN5104") as raised:
            use(*args, **kwargs)
        assert problem in str(raised.value)


def test_buffers_tied_weights_and_names_of_state() -> None:
    model = Counter()
    program = kiln.export(model, (torch.randn(3, 4),))
    assert program.mutated == ["calls"]
    assert program.state_dict().keys() == model.state_dict().keys()
    assert program.tied == {"second.weight": "first.weight"}
    original = copy.deepcopy(model)
    x = torch.randn(3, 4)
    for _ in range(2):
        (expected, count), (found, counted) = original(x), program(x)
        assert_close(found, expected)
        assert_close(counted, count)
    assert model.calls == 2, "a program has the module's own tensors"


def test_compiled_modules_are_exported_as_their_originals() -> None:
    model = Classifier()
    x = torch.randn(6, 16)
    assert_close(kiln.export(kiln.compile(model), (x,))(x), model(x))
    assert_close(kiln.export(kiln.compile(torch.nn.functional.silu), (x,))(x), torch.nn.functional.silu(x))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


WEIGHT = torch.randn(5)


def results(x: Tensor, *rest: Tensor, scale: float = 2.0, flag: bool = True) -> Any:
    y = x * scale + WEIGHT if flag else x
    return Pair(y, x), [y[0], y.view(-1), None, "text", *rest], {1: x.size(0), "x": WEIGHT}


def test_results_of_every_kind() -> None:
    x, more = torch.randn(3, 5), torch.randn(2)
    program = kiln.export(results, (x, more), {"scale": 0.5}, dynamic_shapes={"x": {0: kiln.Dim.AUTO}})
    for rows in (3, 4):
        x = torch.randn(rows, 5)
        check(program, results, x, more, scale=0.5)
        found = program(x, more, scale=0.5)
        assert found[0].second is x
        assert found[1][1].data_ptr() == found[0].first.data_ptr()
        assert found[1][4] is more
    assert "constant globals_WEIGHT: f32[5]" in program.text()
    with pytest.raises(ValueError, match=r"`scale` is 0.25: it was exported with 0.5, which is fixed"):
        program(x, more, scale=0.25)
    assert [state.kind for state in program.signature.states] == ["constant"]


def changed_argument(x: Tensor, y: Tensor) -> Tensor:
    x[1:].mul_(2)
    return x[:1] + y


def test_changed_arguments_and_views_of_them() -> None:
    x, y = torch.randn(4, 3), torch.randn(3)
    program = kiln.export(changed_argument, (x, y))
    assert program.mutated == ["x"]
    check(program, changed_argument, x, y)
    with pytest.raises(ValueError, match="share memory"):
        program(x, x[0])
    with pytest.raises(ValueError, match="strides"):
        program(torch.randn(3, 4).t(), y)


def sums(x: Tensor) -> Tensor:
    return torch.as_strided(x, (2, 2), (1, 2), 1) + x.t()[:2, :2]


def test_arguments_in_other_layouts() -> None:
    program = kiln.export(sums, (torch.randn(5, 4)[1:],))
    for x in (torch.randn(4, 4), torch.randn(4, 4).t(), torch.randn(6, 4)[2:]):
        assert_close(program(x), sums(x.contiguous()))


# Dynamic sizes.


def two_inputs(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y]).reshape(-1, 2).sum(1)


def test_derived_dimensions_and_constraints() -> None:
    batch = kiln.Dim("batch", max=100)
    shapes = {"x": {0: batch}, "y": {0: 2 * batch + 1}}
    program = kiln.export(two_inputs, (torch.randn(5, 4), torch.randn(11, 4)), dynamic_shapes=shapes)
    check(program, two_inputs, torch.randn(7, 4), torch.randn(15, 4))
    with pytest.raises(ValueError, match=r"it must be 2\*batch \+ 1 = 15"):
        program(torch.randn(7, 4), torch.randn(14, 4))


def grouped(x: Tensor) -> Tensor:
    if x.size(0) % 4:
        return x
    return x.reshape(-1, 4, x.size(1)).sum(1)


def test_constraints_name_the_line_that_needs_them() -> None:
    program = kiln.export(grouped, (torch.randn(8, 3),), dynamic_shapes=({0: BATCH},))
    check(program, grouped, torch.randn(12, 3))
    with pytest.raises(ValueError, match=r"batch = 6: .*the program needs .* in grouped"):
        program(torch.randn(6, 3))


def test_examples_say_which_sizes_are_dynamic() -> None:
    examples = kiln.Examples((torch.randn(8, 3), torch.randn(8))).call(torch.randn(2, 3), torch.randn(2))

    def scaled(x: Tensor, y: Tensor) -> Tensor:
        return x * y[:, None]

    program = kiln.export(scaled, (torch.randn(4, 3), torch.randn(4)), dynamic_shapes=examples)
    check(program, scaled, torch.randn(9, 3), torch.randn(9))
    with pytest.raises(ValueError, match="KILN5104"):
        program(torch.randn(9, 3), torch.randn(8))


def test_objects_of_torch_export_are_understood() -> None:
    dim = torch.export.Dim("rows", min=2, max=32)
    shapes = {"x": {0: dim}, "y": {0: 2 * dim + 1, 1: torch.export.Dim.STATIC}}
    program = kiln.export(two_inputs, (torch.randn(5, 4), torch.randn(11, 4)), dynamic_shapes=shapes)
    assert "2 <= rows <= 32" in program.constraints
    auto = {"x": {0: torch.export.Dim.AUTO}, "y": {0: torch.export.Dim.DYNAMIC}}
    program = kiln.export(two_inputs, (torch.randn(5, 4), torch.randn(11, 4)), dynamic_shapes=auto)
    check(program, two_inputs, torch.randn(3, 4), torch.randn(4, 4))


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        (lambda x: x.transpose(0, 1).contiguous() * 2, (-1, 8)),
        (lambda x: x.transpose(0, 1).reshape(-1).softmax(0), (-1, 8)),
        (lambda x: nn.functional.linear(x.permute(0, 2, 3, 1), torch.ones(5, 3)), (-1, 3, 4, 4)),
        (nn.TransformerEncoderLayer(16, 2, 32).eval(), (-1, 2, 16)),
        (nn.LSTM(8, 8, batch_first=True), (-1, 5, 8)),
        (nn.LSTM(8, 8, batch_first=True), (2, -1, 8)),
        (nn.AdaptiveAvgPool2d(1), (2, 3, -1, 4)),
        (lambda x: torch.cat([x.new_ones(1, 2).expand(len(x), -1), x], 1), (-1, 3)),
        (lambda x: x @ x.transpose(-1, -2) @ torch.ones(1, 4, 5), (-1, 2, 4, 4)),
    ],
    ids=["contiguous", "reshape", "linear", "encoder", "lstm", "lstm-length", "pool", "expand", "products"],
)
def test_layouts_exclude_no_size_of_one(target: Callable[..., Any], shape: tuple[int, ...]) -> None:
    def example(size: int) -> Tensor:
        return torch.randn([size if length == -1 else length for length in shape])

    rows = kiln.Dim("rows", min=1, max=64)
    with torch.no_grad():
        program = kiln.export(target, (example(5),), dynamic_shapes=({shape.index(-1): rows},))
        assert program.constraints[0] == "1 <= rows <= 64"
        for size in (1, 2, 9):
            x = example(size)
            assert_close(program(x), target(x))


def test_a_view_that_splits_columns_fixes_no_stride() -> None:
    """At the width 8 all columns are used, and their rows lie one behind the other."""

    def pairs(x: Tensor) -> Tensor:
        return x[:, : x.shape[1] // 2 * 2].view(len(x), x.shape[1] // 2, 2)

    auto = kiln.Dim.AUTO
    program = kiln.export(pairs, (torch.randn(2, 8),), dynamic_shapes=({0: auto, 1: auto},))
    for shape in ((2, 8), (3, 9), (1, 2)):
        x = torch.randn(shape)
        assert_close(program(x), pairs(x))


def test_a_write_behind_a_copy_excludes_the_size_that_makes_it_a_view() -> None:
    def written(x: Tensor) -> Tensor:
        x.transpose(0, 1).contiguous().add_(1)
        return x * 2

    program = kiln.export(written, (torch.ones(5, 8),), dynamic_shapes={"x": {0: kiln.Dim("rows", min=1)}})
    check(program, written, torch.ones(2, 8))
    with pytest.raises(ValueError, match="rows"):
        program(torch.ones(1, 8))


def fixed(x: Tensor) -> Tensor:
    return x + torch.ones(4, 1)


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"y": {0: BATCH}}, "there is no argument `y`"),
        ({"x": {2: BATCH}}, "there is no dimension 2"),
        ({"x": {0: kiln.Dim("batch", min=5)}}, "the size 4 is outside 5 <= batch"),
        ({"x": {0: BATCH, 1: BATCH}}, "`batch` is 4 elsewhere, and 3 here"),
        ({"x": {0: -1 * BATCH}}, "only used in expressions"),
        ({"x": {1: 2 * BATCH}}, "the size 3 is not 2*batch for any number `batch`"),
        ({"x": {0: 2 * kiln.Dim("half", max=1)}}, "the size 4 is outside 0 <= half_size <= 2"),
        *[
            ({"x": {0: kiln.Dim(name)}}, "cannot be the name")
            for name in ("min", "f32", "lambda", "cpu", "_value_1", "inf")
        ],
        ({"x": {0: 1.5}}, "is not a dimension"),
        ({"x": [BATCH]}, "a tuple of 2"),
        (3, "kiln.Examples"),
        ({"x": {0: BATCH}}, "works for the size 4 only"),
        ({"x": {0: kiln.Dim.DYNAMIC}}, "works for the size 4 only"),
    ],
)
def test_wrong_dynamic_shapes(shapes: object, problem: str) -> None:
    with pytest.raises(KilnError) as raised:
        kiln.export(fixed, (torch.randn(4, 3),), dynamic_shapes=shapes)
    assert raised.value.code == "KILN5103"
    assert problem in str(raised.value)


def summed(parts: list[Tensor], scale: float = 1.0) -> Tensor:
    return (parts[0].sum() + parts[1].sum()) * scale


def test_dynamic_shapes_of_the_items_of_a_list() -> None:
    parts = [torch.randn(4, 3), torch.randn(5)]
    program = kiln.export(summed, (parts,), dynamic_shapes={"parts": [{0: BATCH}, None]})
    other = [torch.randn(7, 3), torch.randn(5)]
    torch.testing.assert_close(program(other), summed(other))
    for shapes in ([{0: BATCH}], [{0: BATCH}, None, None], {0: BATCH}):
        with pytest.raises(KilnError, match="KILN5103"):
            kiln.export(summed, (parts,), dynamic_shapes={"parts": shapes})


@dataclass
class Tagged:
    ids: Any
    mask: Any = None
    tag: Any = None


pytree.register_dataclass(Tagged)


def test_dynamic_shapes_of_a_registered_dataclass_have_its_fields() -> None:
    """Taken apart, it has no fields that are None, of which the shapes have others than the argument."""
    given = Tagged(torch.randn(4, 3), tag="x")
    shapes: Any = {"batch": Tagged({0: BATCH})}
    program = kiln.export(lambda batch: Tagged(batch.ids * 2, tag=batch.tag), (given,), dynamic_shapes=shapes)
    found: Any = program(Tagged(torch.ones(7, 3), tag="x"))
    assert found.tag == "x" and found.mask is None
    assert_close(found.ids, torch.full((7, 3), 2.0))


def test_dynamic_shapes_of_a_registered_dataclass_as_a_dict(tmp_path: Path) -> None:
    """One without a name for files is saved by its fields."""
    shapes: Any = {"batch": {"ids": {0: BATCH}, "mask": None}}
    program = kiln.export(
        lambda batch: Tagged(batch.ids * 2), (Tagged(torch.randn(4, 3), tag="x"),), dynamic_shapes=shapes
    )
    program.save(tmp_path / "tagged.kp")
    found: Any = kiln.load_program(tmp_path / "tagged.kp")(Tagged(torch.ones(7, 3), tag="x"))
    assert type(found) is Tagged and found.tag is None and found.mask is None
    assert_close(found.ids, torch.full((7, 3), 2.0))


HALF = kiln.Dim("half", min=1, max=50)


@pytest.mark.parametrize("dim", [HALF, torch.export.Dim("half", min=1, max=50)])
def test_a_dimension_in_expressions_only(dim: Any) -> None:
    def halves(x: Tensor, y: Tensor) -> Tensor:
        half = x.shape[0] // 2
        return x[:half] * x[half:] + y.reshape(half, 3).sum()

    example = torch.randn(8, 3), torch.randn(12)
    program = kiln.export(halves, example, dynamic_shapes=({0: 2 * dim}, {0: 3 * dim}))
    assert "x: f32[half_size, 3]" in program.text() and "y: f32[3*(half_size//2)]" in program.text()
    assert [str(within) for within in program.constraints[:2]] == ["2 <= half_size <= 100", "half_size%2 == 0"]
    check(program, halves, torch.randn(2, 3), torch.randn(3))
    with pytest.raises(KilnError, match="half_size%2 == 0"):
        program.check_shapes(torch.randn(9, 3), torch.randn(12))
    with pytest.raises(KilnError, match="3\\*\\(half_size//2\\) = 15"):
        program.check_shapes(torch.randn(10, 3), torch.randn(12))


def test_dimensions_with_a_whole_multiple_of_one_in_expressions() -> None:
    def padded(x: Tensor, y: Tensor) -> Tensor:
        return x.reshape(y.shape[0] - 1, 2) + y[1:]

    program = kiln.export(padded, (torch.randn(8), torch.randn(5, 1)), dynamic_shapes=({0: 2 * HALF}, {0: HALF + 1}))
    assert "x: f32[2*half_size - 2]" in program.text() and "y: f32[half_size, 1]" in program.text()
    check(program, padded, torch.randn(2), torch.randn(2, 1))


# What cannot be exported.


class Remembers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2
        return x


class Thing:
    pass


def returns_an_object(x: Tensor) -> Any:
    thing = Thing()
    thing.x = x  # type: ignore[attr-defined]
    return thing


class Half:
    """Of a registered class, but not all of it can be taken apart."""


def taken_apart(value: Half) -> Any:
    raise RuntimeError("this one cannot")


torch.utils._pytree.register_pytree_node(Half, taken_apart, lambda parts, context: Half())


def returns_half(x: Tensor) -> Half:
    return Half()


def waits(x: Tensor) -> Tensor:
    y = x + 1
    time.sleep(0)
    return y


def prints(x: Tensor) -> Tensor:
    y = x + 1
    print("sum", y.sum())
    warnings.warn("twice", stacklevel=1)
    return y * 2


def branches(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def may_be_none(x: Tensor) -> Tensor | None:
    """What a side returns is chosen in Python, which no program holds."""
    if x.sum() > 0:
        return None
    return x * 2


def returns_early(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    return x * 2


def test_sides_that_return_are_in_the_program() -> None:
    program = kiln.export(returns_early, (torch.ones(3),))
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(program(x), returns_early(x))


def asks_first(x: Tensor) -> Tensor:
    """What transformers do with masks: a way with values in eager, one without them for compilers."""
    if torch.compiler.is_compiling() or not (x > 0).all():
        return torch.where(x > 0, x, 0.0)
    return x


def asks_in_vain(x: Tensor) -> Tensor:
    """What it does for compilers is no part of a graph."""
    if torch.compiler.is_compiling():
        time.sleep(0)
    return x + 1 if x.sum() > 0 else x * 2


@pytest.mark.parametrize(("target", "nodes"), [(asks_first, ["gt", "where"]), (asks_in_vain, ["sum", "gt"])])
def test_the_answer_to_is_compiling_that_has_a_graph_is_given(target: Any, nodes: list[str]) -> None:
    program = kiln.export(target, (torch.ones(3),))
    found = [node.op.name for node in program.graph.nodes]
    assert [name for name in nodes if name not in found] == []
    for x in (torch.ones(3), -torch.ones(3)):
        assert_close(program(x), target(x))


def weighed(weight: Tensor, x: Tensor, *, shift: float) -> Tensor:
    return x @ weight + shift


def by_conjugate(x: Tensor) -> Tensor:
    return (x * x.conj()).real


def for_onnx(x: Tensor) -> Tensor:
    return x if torch.onnx.is_in_onnx_export() else x + 1


@pytest.mark.parametrize(
    ("target", "example"),
    [
        (functools.partial(weighed, torch.randn(3, 2), shift=0.5), torch.randn(4, 3)),
        (by_conjugate, torch.randn(4, dtype=torch.complex64)),
        (for_onnx, torch.randn(4)),
        (lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=0).real, torch.randn(4, 3)),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=3), torch.randn(4, 3)),
    ],
    ids=["partial", "conjugate", "onnx", "spectrum", "half-spectrum"],
)
def test_calls_that_a_file_keeps(target: Any, example: Tensor, tmp_path: Path) -> None:
    kiln.export(target, (example,), dynamic_shapes=({0: kiln.Dim("rows")},)).save(tmp_path / "p")
    x = torch.cat([example, example])
    assert_close(kiln.load_program(tmp_path / "p")(x), target(x))


def test_messages_are_no_part_of_a_program() -> None:
    x = torch.arange(3.0)
    with pytest.warns(UserWarning, match="twice"):
        program = kiln.export(prints, (x,))
    torch.testing.assert_close(program(x), (x + 1) * 2)


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        (Remembers(), "KILN5101", "`Remembers` cannot be exported: it changes `self.last`"),
        (returns_an_object, "KILN5102", "Thing"),
        (returns_half, "KILN5102", "Half"),
        (waits, "KILN1", "sleep"),
        (branches, "KILN1", "x.sum() > 0"),
        (may_be_none, "KILN1", "x.sum() > 0"),
        (torch.sin, "KILN5106", "nn.Module"),
    ],
)
def test_what_is_not_one_graph_is_a_short_error(target: Any, code: str, words: str) -> None:
    with pytest.raises(KilnError) as raised:
        kiln.export(target, (torch.randn(3),))
    assert raised.value.code.startswith(code)
    assert words in str(raised.value)
    assert len(str(raised.value).split("\n")) <= 15
    if code == "KILN1":
        assert "tests/programs/test_export.py" in str(raised.value)


class ScaledByNumberOfCalls(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def normalised() -> nn.Module:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 3)), nn.utils.weight_norm(nn.Conv1d(1, 2, 2)))


def pruned() -> nn.Module:
    model = nn.Linear(3, 3)
    prune.l1_unstructured(model, "weight", 0.5)  # type: ignore[no-untyped-call]
    return model


@pytest.mark.parametrize("make", [normalised, pruned])
def test_what_a_call_stores_for_itself_is_no_state(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Hooks compute a weight and store it as an attribute of the module, which `forward` reads."""
    torch.manual_seed(0)
    model = make()
    shapes = {"input": {0: kiln.Dim("rows", min=1)}}
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    program = kiln.export(model, (torch.randn(4, 1, 3),), dynamic_shapes=shapes)
    for name, module in model.named_modules():
        assert vars(module).keys() == before[name].keys()
        assert all([vars(module)[key] is value for key, value in before[name].items()])
    program.save(tmp_path / "p")
    with torch.no_grad():
        model(torch.randn(4, 1, 3))
        for rows in (4, 1, 7):
            x = torch.randn(rows, 1, 3)
            for run in (program, kiln.load_program(tmp_path / "p")):
                assert_close(run(x), model(x))


def talkative(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("positive")
        y = x * 2
    else:
        warnings.warn("not positive", stacklevel=1)
        y = x - 1
    return y


@pytest.mark.filterwarnings("ignore:not positive")
def test_what_a_side_prints_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """As outside of branches: both sides are in the graph."""
    program = kiln.export(talkative, (torch.ones(3),), dynamic_shapes=({0: BATCH},))
    for x in (torch.ones(4), -torch.ones(5)):
        expected = talkative(x)
        capsys.readouterr()
        assert_close(program(x), expected)
        assert capsys.readouterr().out == ""


def test_what_a_call_reads_of_the_last_one_is_state() -> None:
    with pytest.raises(ExportChangesObject, match=r"it changes `self\.calls`"):
        kiln.export(ScaledByNumberOfCalls(), (torch.ones(3),))


# Training.


def test_a_training_program_returns_the_gradients() -> None:
    model = Loss()
    x, target = torch.randn(7, 6), torch.randn(7, 3)
    program = kiln.export(model, (x, target), dynamic_shapes={"x": {0: BATCH}, "target": {0: BATCH}}, training=True)
    verify(program.graph, after="export")
    for rows in (7, 5):
        x, target = torch.randn(rows, 6), torch.randn(rows, 3)
        (loss, prediction), gradients = program(x, target)
        model.zero_grad()
        expected, predicted = model(x, target)
        expected.backward()
        assert_close((loss, prediction), (expected.detach(), predicted.detach()))
        assert_close(gradients, {name: parameter.grad for name, parameter in model.named_parameters()})


@pytest.mark.parametrize("model", [Classifier(), nn.ReLU()])
def test_training_needs_a_loss(model: nn.Module) -> None:
    with pytest.raises(KilnError) as raised:
        kiln.export(model, (torch.randn(7, 16),), training=True)
    assert raised.value.code == "KILN5105"


class Restores(nn.Module):
    """Sets an attribute for the time of a call, as libraries do that collect values of layers."""

    collector = None

    def __init__(self) -> None:
        super().__init__()
        self.mode = None

    def forward(self, x: Tensor) -> Tensor:
        before, self.mode = self.mode, "collect"  # type: ignore[assignment]
        y = x + (1 if self.mode == "collect" else 2)
        self.mode = before
        return y


def test_attributes_that_are_restored_are_no_change() -> None:
    model, x = Restores(), torch.randn(3)
    check(kiln.export(model, (x,)), model, x)
    assert model.mode is None


class Averages(nn.Module):
    """Buffers that are stored anew: of itself and of a module in it, in place, exchanged, one that is not read."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean", "before", "last"):
            self.register_buffer(name, torch.zeros(3))
        self.inner = nn.Module()
        self.inner.register_buffer("count", torch.tensor(0))
        self.register_buffer("absent", None)

    def forward(self, x: Tensor, size: int = 3) -> Tensor:
        self.inner.count += 1
        self.mean, self.before = self.before, self.mean * 0.5 + x[:, :3].mean(0)  # type: ignore[has-type]
        self.last = x[0, :size]
        if size == 1:
            self.absent = x
        return x - self.mean / self.inner.count


def test_buffers_that_are_stored_anew(tmp_path: Path) -> None:
    model, x = Averages(), torch.randn(2, 3)
    program = kiln.export(model, (x,), dynamic_shapes={"x": {0: kiln.Dim("batch", min=1)}})
    assert model.mean is model._buffers["mean"] and not model.mean.any() and not model.inner.count
    program.save(tmp_path / "p")
    program.package(tmp_path / "m", key=b"k")
    exported = program.to_torch_export().module()
    expected = copy.deepcopy(model)
    loaded = kiln.load_program(tmp_path / "p")
    runs = (loaded, kiln.load(tmp_path / "m", key=b"k"), exported)
    with torch.no_grad():
        for rows in (2, 5, 3):
            x = torch.randn(rows, 3)
            wanted = expected(x)
            for run in runs:
                assert_close(run(x), wanted)
    for name, buffer in expected.named_buffers():
        assert_close(loaded.state_dict()[name], buffer)
    for size in (2, 1):
        with pytest.raises(ExportChangesObject, match="a buffer, which gets another size"):
            kiln.export(model, (x, size))
    assert model.absent is None


def test_what_fixes_a_size_is_named_with_its_line_if_there_is_one() -> None:
    env = ShapeEnv()
    known, unknown, free = env.create_symbol(4), env.create_symbol(5), env.create_symbol(6)
    env.decide(rel_eq(known, 4), Location("model.py", 41, "forward"))
    env.decide(rel_eq(unknown, 5))
    assert (
        fixed_problem(env, known, 4) == "the program works for the size 4 only (`s0 == 4` at model.py:41, in forward)"
    )
    assert fixed_problem(env, unknown, 5) == "the program works for the size 5 only (`s1 == 5`)"
    assert fixed_problem(env, free, 6) == "the program works for the size 6 only (``)"


class Slope(nn.Module):
    """A loss and its gradients, which the program takes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        loss = self.layers(x).square().mean()
        return loss, *torch.autograd.grad(loss, list(self.parameters()))


def test_a_program_that_takes_gradients_of_its_parameters() -> None:
    model = Slope()
    program = kiln.export(model, (torch.randn(6, 4),), dynamic_shapes={"x": {0: BATCH}})
    for rows in (2, 6, 9):
        check(program, model, torch.randn(rows, 4))


def test_an_error_without_gradients_is_the_one_that_is_raised() -> None:
    def wrong(x: Tensor) -> Tensor:
        return torch.autograd.grad(x.sum(), x)[0]

    with pytest.raises(KilnError, match="does not require grad"):
        kiln.export(wrong, (torch.randn(3),))
