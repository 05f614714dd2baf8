"""Exports of programs whose positions, numbers and sizes the values of tensors decide."""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import kiln
from kiln.plan.errors import CheckFailed


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 16, 4))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.cache[:, t] = x
        return self.cache.sum(1)


def stored_rows(cache: Tensor, x: Tensor, t: Tensor) -> Tensor:
    cache[:, t : t + 2] = x
    return cache * 2


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
        return out


class ExpertsOfMasks(Experts):
    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        masks = nn.functional.one_hot(chosen, 4).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            places, rows = torch.where(masks[number])
            out.index_add_(0, rows, expert(x[None, rows].reshape(-1, 8)) * weights[rows, places, None])
        return out


def asserted(x: Tensor, i: Tensor) -> Tensor:
    assert i < 4, "too far"
    return x[i]


def roots(x: Tensor, n: Tensor) -> Tensor:
    return x / math.sqrt(n.item()) + math.log(n.item())


class Padded(nn.Module):
    """Settings in buffers and in a closure decide a padding, a loop and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stride", T(3), persistent=False)
        self.register_buffer("ends", T([0, 2, 5]))
        self.register_buffer("scale", T([0.5, 2.0]))
        self.offset = T(1)

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.ceil(x.shape[-1] / self.stride).to(torch.int64)
        x = nn.functional.pad(x, (0, frames * self.stride - x.shape[-1] + max(self.offset, 0)))
        for start, end in zip(self.ends.tolist(), self.ends.tolist()[1:], strict=False):
            x = x + x[:, start:end].sum()
        return x * 2 if self.scale.max() > 1 else x


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", T(0))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2 if self.calls > 3 else x
        self.calls += 1
        return y


class Position(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("at", T(0))
        self.register_buffer("rows", torch.zeros(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        self.rows[self.at] = x
        self.at += 1
        return self.rows.sum(0)


def stored_and_read(cache: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    changed = cache.clone()
    changed[:, t] = 7.0
    return changed * 2, cache[:, t]


def best_of_chosen(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    chosen = x[:, keep]
    best = chosen.sum(-1).topk(min(2, chosen.shape[1]), dim=-1).indices
    return chosen[torch.arange(2)[:, None], best], chosen.sum(-1).gather(-1, best)


def rows_of(size: int) -> tuple[Tensor]:
    return (torch.randn(size, 8),)


T = torch.tensor
ROWS = {"x": {0: kiln.Dim("rows", min=1)}}
LENGTH = kiln.Dim("length", min=2)


def parts_of_grid(x: Tensor, grid: Tensor) -> Tensor:
    """How many parts there are data decide; how long each is stays free."""
    lengths = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    parts = torch.split(x, lengths.tolist())
    return torch.cat([part.softmax(0) for part in parts])


def blocks_of_grid(x: Tensor, grid: Tensor) -> Tensor:
    """A size is left open beside sizes from data; a comparison chooses a side."""
    found = []
    for h, w in grid.tolist():
        block = x[: h * w].reshape(h // 2, 2, w // 2, 2, -1).transpose(1, 2).reshape(h * w, -1)
        found += [block] if h > 2 else [block, block]
    return torch.cat(found)


CASES: dict[str, tuple[Any, list[Any], Any]] = {
    "position": (Cached(), [(torch.randn(2, 4), T(i)) for i in (3, 0, 15, -1, -16)], None),
    "rows": (stored_rows, [(torch.zeros(2, 16, 4), torch.ones(2, 2, 4), T(i)) for i in (3, 0)], None),
    "from-the-end": (stored_and_read, [(torch.randn(3, 5, 2), T(i)) for i in (1, -1, 4, -5)], {"cache": {1: LENGTH}}),
    "none-chosen": (
        best_of_chosen,
        [(torch.randn(2, 5, 3), T(keep) > 0) for keep in ([1, 0, 1, 1, 0], [0] * 5, [0, 0, 0, 1, 0])],
        None,
    ),
    "experts": (Experts(), [rows_of(6), rows_of(1), rows_of(40)], ROWS),
    "masks": (ExpertsOfMasks(), [rows_of(6), rows_of(1), rows_of(40)], ROWS),
    "batch-norm": (nn.BatchNorm1d(8, momentum=None), [rows_of(5), rows_of(5), rows_of(5)], None),
    "asserted": (asserted, [(torch.randn(5, 3), T(i)) for i in (0, 3)], None),
    "selected": (
        lambda x, mask: (x.masked_select(x > 0) * 2, x.masked_select(mask)),
        [(torch.randn(n, 3), T([True, False, True])) for n in (4, 1, 6)],
        {"x": {0: kiln.Dim("rows")}},
    ),
    "integer": (roots, [(torch.randn(3), T(n)) for n in (4, 9)], None),
    "settings": (Padded(), [(torch.randn(2, 7),), (torch.randn(2, 7),)], None),
    "counter": (Position(), [(torch.randn(2),)] * 3, None),
    "parts": (
        parts_of_grid,
        [
            (torch.randn(14, 2), T([[1, 2, 3], [2, 2, 2]])),
            (torch.randn(9, 2), T([[2, 1, 3], [1, 3, 1]])),
            (torch.randn(6, 2), T([[3, 1, 2]])),
        ],
        {"x": {0: kiln.Dim.AUTO}, "grid": {0: kiln.Dim.AUTO}},
    ),
    "float": (roots, [(torch.randn(3), T(n)) for n in (4.0, 0.5)], None),
}


def forms(target: Any, example: Any, shapes: Any, folder: Path) -> dict[str, Callable[[], Callable[..., Any]]]:
    """The ways in which a program runs, each made of an export of its own."""

    def program() -> kiln.Program:
        return kiln.export(copy.deepcopy(target), copy.deepcopy(example), dynamic_shapes=shapes)

    def package() -> Callable[..., Any]:
        program().package(folder / "p.kiln", target="cpu", key=b"k")
        return kiln.load(folder / "p.kiln", key=b"k")

    def exported() -> kiln.Program:
        return kiln.Program.from_torch_export(program().to_torch_export())

    return {"program": program, "package": package, "torch.export": exported}


@pytest.mark.parametrize("form", ["program", "package", "torch.export"])
@pytest.mark.parametrize("name", CASES)
def test_a_program_of_values_equals_eager(name: str, form: str, tmp_path: Path) -> None:
    target, calls, shapes = CASES[name]
    with torch.no_grad():
        run, original = forms(target, calls[0], shapes, tmp_path)[form](), copy.deepcopy(target)
        for args in calls:
            given, expected = copy.deepcopy(args), copy.deepcopy(args)
            assert_close(run(*given), original(*expected))
            assert_close(given, expected)


@pytest.mark.parametrize(("name", "bad"), [("position", -17), ("position", 16), ("asserted", 4), ("integer", -1)])
def test_a_value_that_was_excluded_is_an_error_with_its_line(name: str, bad: int, tmp_path: Path) -> None:
    target, (example, *_), shapes = CASES[name]
    with torch.no_grad():
        made = forms(target, example, shapes, tmp_path)
        with pytest.raises(RuntimeError, match=r"does not hold.* at .*test_export_values.py:\d+"):
            made["program"]()(example[0], T(bad))
        with pytest.raises(CheckFailed, match="does not hold"):
            made["package"]()(example[0], T(bad))


def test_an_index_into_nothing_is_an_error_before_a_kernel_reads(tmp_path: Path) -> None:
    def chosen(x: Tensor, keep: Tensor, rows: Tensor) -> Tensor:
        return x[:, keep][:, rows]

    x, rows = torch.randn(2, 3), T([0, 1])
    made = forms(chosen, (x, T([True, False, True]), rows), None, tmp_path)
    for form, error in (("program", RuntimeError), ("package", CheckFailed)):
        with pytest.raises(error, match="1 <= u0 does not hold"):
            made[form]()(x, T([False] * 3), rows)


def test_what_carried_tensors_decide_is_checked_and_may_not_change() -> None:
    program = kiln.export(Padded(), (torch.randn(2, 7),))
    program.state["ends"][1] = 1
    with pytest.raises(RuntimeError, match=r"does not hold.* at .*test_export_values.py:\d+"):
        program(torch.randn(2, 7))
    with pytest.raises(kiln.KilnError, match=r"it changes .*calls.*, whose value decides at .*test_export_values.py"):
        kiln.export(Counting(), (torch.ones(2),))


def test_the_text_and_the_error_name_the_argument_of_a_bound() -> None:
    example = torch.zeros(2, 16, 4), torch.ones(2, 2, 4), T(3)
    program = kiln.export(stored_rows, example)
    text = "in Tensor.item at .*test_export_values.py:\\d+, in stored_rows, where u0 is the number in `t`"
    assert re.search(f"checks that 0 <= u0 {text}", program.text())
    assert re.search(f"checks that u0 <= 14 {text}", program.text())
    with pytest.raises(RuntimeError, match=f"0 <= u0 does not hold {text}"):
        program(*example[:2], T(-3))


def test_what_numbers_in_arguments_decide_is_checked(tmp_path: Path) -> None:
    program = kiln.export(lambda x, ends: x[: ends.tolist()[0]].chunk(ends.tolist()[1]), (torch.ones(4), T([2, 1])))
    assert "checks values at " in program.text()
    assert_close(program(torch.arange(4.0), T([2, 1])), (torch.arange(2.0),))
    with pytest.raises(RuntimeError, match=r"does not hold.* at .*test_export_values.py:\d+"):
        program(torch.ones(4), T([2, 2]))
    free = {"x": {0: kiln.Dim.AUTO}, "grid": {0: kiln.Dim.AUTO}}
    made = forms(blocks_of_grid, (torch.randn(24, 2), T([[4, 6]])), free, tmp_path)
    for form in ("program", "package"):  # torch's own fakes ask whether u0 // 2 is 1
        for args in ((torch.randn(24, 2), T([[4, 6]])), (torch.randn(32, 2), T([[8, 4]]))):
            assert_close(made[form]()(*args), blocks_of_grid(*args))
        with pytest.raises((RuntimeError, CheckFailed), match=r"3 <= u0 does not hold"):
            made[form]()(torch.randn(24, 2), T([[2, 6]]))
    with pytest.raises(kiln.KilnError, match="KILN1007"):  # no number: a truth
        kiln.export(lambda x, mask: x + 1 if mask.all() else x.numpy(), (torch.ones(4), T([True])))


class Growing(nn.Module):
    """A table of positions that grows where more rows are needed than it has; floats decide how many."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(8.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.repeat_interleave(x, x.exp().round().long(), 0)
        if self.table.shape[0] < rows.shape[0]:
            self.table = torch.arange(2 * rows.shape[0]).float()
        return rows + self.table[: rows.shape[0]]


def test_a_question_about_sizes_that_floats_decide_is_answered_as_in_this_call() -> None:
    calls = [(T(x),) for x in ([0.0, 1.0, 0.5], [1.0], [-9.0, -9.0])]
    program = kiln.export(Growing(), calls[0], dynamic_shapes={"x": {0: kiln.Dim.AUTO}})
    for args in calls:
        assert_close(program(*args), Growing()(*args))
    assert re.search(r"checks that .* <= 8 .*test_export_values.py", program.text()), program.text()
    with pytest.raises(RuntimeError, match=r"<= 8 does not hold .*test_export_values.py:\d+"):
        program(T([3.0, 1.0]))


def test_a_growing_cache_takes_one_row() -> None:
    """Whether the rows that are stored are one is no question of values."""

    def stored(cache: Tensor, x: Tensor, positions: Tensor) -> Tensor:
        cache[:, positions] = x
        cache[0, : x.shape[1]] = x[:, :, 0:1].expand(-1, -1, 2)
        return cache * 2

    rows = kiln.Dim("rows", min=1, max=16)
    calls = [(torch.zeros(1, 16, 2), torch.randn(1, n, 2), torch.arange(n)) for n in (3, 1, 5)]
    program = kiln.export(stored, copy.deepcopy(calls[0]), dynamic_shapes=(None, {1: rows}, {0: rows}))
    assert program.constraints == ["1 <= rows <= 16"]
    for args in calls:
        assert_close(program(*copy.deepcopy(args)), stored(*copy.deepcopy(args)))


def test_a_write_to_a_copy_of_chosen_rows_excludes_what_would_be_a_view() -> None:
    def written(x: Tensor) -> tuple[Tensor, Tensor]:
        chosen = x[x[:, 0] > 0].t()
        return chosen, chosen.contiguous().add_(1)

    program = kiln.export(written, (torch.ones(3, 2),))
    assert_close(program(torch.ones(3, 2)), written(torch.ones(3, 2)))
    with pytest.raises(RuntimeError, match="u0 != 1 does not hold"):
        program(T([[1.0, 2.0], [-1.0, 0.0], [-1.0, 0.0]]))


@pytest.mark.parametrize("name", ["rows", "batch-norm", "integer"])
def test_they_compile_as_one_region(name: str) -> None:
    target, calls, _ = CASES[name]
    original = copy.deepcopy(target)
    compiled = kiln.compile(copy.deepcopy(target), options={"cache": False})
    with torch.no_grad():
        for args in calls:
            assert_close(compiled(*copy.deepcopy(args)), original(*copy.deepcopy(args)))
    report = compiled.report()
    assert (report.compiles, report.breaks, report.eager) == (1, [], 0)


def test_a_draw_that_nothing_reads_is_left_out() -> None:
    """Layers are skipped at random in training only; the number is drawn in any case."""
    layer = nn.Linear(2, 2).eval()

    def skipped(x: Tensor) -> Tensor:
        chance = random.uniform(0, 1)
        return x if layer.training and chance < 0.5 else layer(x)

    x = torch.randn(3, 2)
    assert_close(kiln.export(skipped, (x,))(x), layer(x))
    for function in (lambda x: x * random.random(), lambda x: (x, random.random()),
                     lambda x: x if random.random() < 0.5 else -x):  # fmt: skip
        with pytest.raises(kiln.KilnError, match="KILN1010"):
            kiln.export(function, (x,))
