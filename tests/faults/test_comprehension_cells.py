"""Comprehensions whose variable is a cell: CPython 3.12 inlines them, and a cell of the frame stands aside."""

# ruff: noqa: B023 (the cells that late binding shares are what is tested)

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
from kiln.report import Report

Program = Callable[[Tensor, list[int]], object]


def stop() -> None:
    """A graph break."""
    time.sleep(0)


def break_before(x: Tensor, items: list[int]) -> object:
    stop()
    found = [f() for f in [lambda: v for v in items]]
    return x + sum(found)


def break_after(x: Tensor, items: list[int]) -> object:
    found = [f() for f in [lambda: v for v in items]]
    stop()
    return x + sum(found)


def break_inside(x: Tensor, items: list[int]) -> object:
    found = [(stop(), lambda: v)[1]() + v for v in items]
    return x + sum(found)


def outer_cell(x: Tensor, items: list[int]) -> object:
    v = 100
    outer = lambda: v  # noqa: E731
    stop()
    found = [f() for f in [lambda: v for v in items]]
    stop()
    return x + sum(found) + outer() + v


def outer_cell_alone(x: Tensor, items: list[int]) -> object:
    v = 100
    outer = lambda: v  # noqa: E731
    found = [v * 2 for v in items]
    stop()
    v = v + 1
    return x + sum(found) + outer()


def parameter(x: Tensor, items: list[int]) -> object:
    functions = [lambda: (items, 2) for items in items]
    stop()
    return x + sum(f()[0] for f in functions) + len(items)


def nested(x: Tensor, items: list[int]) -> object:
    stop()
    functions = [[lambda: (v, w) for w in items] for v in items]
    return x + sum(sum(f()) for row in functions for f in row)


def raises_afterwards(x: Tensor, items: list[int]) -> object:
    stop()
    items.extend([f() for f in [lambda: v for v in items]][:3])
    items.clear()
    items.pop()
    return x


PROGRAMS = [
    break_before, break_after, break_inside, outer_cell, outer_cell_alone, parameter, nested, raises_afterwards,
]  # fmt: skip


def outcome(program: Program, items: list[int]) -> object:
    try:
        return program(torch.ones(2), items), items
    except IndexError as error:
        return str(error), items


@pytest.mark.parametrize("program", PROGRAMS)
def test_cells_of_comprehensions(program: Program) -> None:
    compiled = kiln.compile(program, backend="eager")
    for items in ([1, 2, 3], [4], [1, 2, 3], []):
        assert str(outcome(compiled, list(items))) == str(outcome(program, list(items)))
    report = kiln.report_of(compiled)
    assert (isinstance(report, Report) and not report.eager_reasons) or program is raises_afterwards
