"""Loops that a changing number ends: whole for the first numbers, then one variant whose loop breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.capture.idioms.outcome import same

torch.manual_seed(0)
LAYER = nn.Linear(4, 4)
COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 3, 2, 0, 1)


def iterated(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = torch.tanh(LAYER(x))
    return x


def nested(x: Tensor, n: int) -> Tensor:
    with torch.no_grad():
        for i in range(n):
            for j in range(i):
                if j == 3:
                    break
                x = x + j
            else:
                x = x * 2
    return x


def paired(x: Tensor, n: int) -> tuple[Any, ...]:
    total = x
    for i, j in zip(range(n), range(1, n + 1), strict=True):
        total = total + x * i + j
    return total, [2 * k for k in range(n)], list(reversed(range(n)))


def counted(x: Tensor, n: int) -> tuple[Tensor, int]:
    turns = 0
    while turns < n:
        x = torch.tanh(LAYER(x))
        turns += 1
    return x, turns


def until_done(x: Tensor, n: int) -> tuple[Tensor, int]:
    turns, done = 0, False
    while not done:
        x = torch.tanh(LAYER(x))
        turns += 1
        done = turns >= n
    return x, turns


def left_at_a_number(x: Tensor, n: int) -> tuple[Tensor, int]:
    for turn in range(20):
        if turn == n:
            break
        x = torch.tanh(LAYER(x))
    return x, turn


def asked(x: Tensor, n: int) -> tuple[Any, ...]:
    return x * n, len(range(n)), 3 in range(n), range(n + 1)[-1], range(n).stop, bool(range(n)), range(n) == range(4)


@pytest.mark.parametrize(
    ("program", "most"),
    [(iterated, 8), (nested, 17), (paired, 16), (asked, 14), (counted, 9), (until_done, 8), (left_at_a_number, 9)],
    ids=lambda value: str(value)[:18],
)
def test_one_variant_serves_all_numbers(program: Callable[..., Any], most: int) -> None:
    compiled: Any = kiln.compile(program)
    for n in COUNTS:
        x = torch.randn(2, 4)
        assert same(compiled(x, n), program(x, n)), n
    report = compiled.report()
    assert report.compiles <= most and not report.eager, str(report)


def test_gradients_flow_through_the_turns() -> None:
    compiled: Any = kiln.compile(iterated)
    for n in COUNTS:
        x, y = (torch.linspace(-1, 1, 8).view(2, 4).requires_grad_() for _ in range(2))
        compiled(x, n).sum().backward()
        iterated(y, n).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_with_fullgraph_each_number_is_compiled() -> None:
    compiled: Any = kiln.compile(iterated, backend="eager", fullgraph=True)
    for n in range(7):
        compiled(torch.ones(2, 4), n)
    assert compiled.report().compiles == 7


def settled(x: Tensor, n: int) -> Tensor:
    for turn in range(n):
        x = x * 0.7 - turn
        if x.norm().item() < 0.5:
            break
    return x


def chosen_rows(x: Tensor, n: int) -> Tensor:
    kept = torch.zeros(10, *x.shape)
    for turn in range(n):
        x = x * 0.7
        kept[turn] = x
        if x.norm() < 0.5:
            break
    return kept


@pytest.mark.parametrize(("program", "most"), [(settled, 2), (chosen_rows, 4)])
def test_a_short_loop_that_data_may_end_is_one_of_the_graph_for_all_numbers(
    program: Callable[..., Any], most: int
) -> None:
    """The turns of a number that has not changed are branches within one another, as are those of in-place changes."""
    compiled = kiln.compile(program)
    for number, n in enumerate((3, 4, 5, 6)):
        x = torch.full((4,), float(number))
        assert same(program(x, n), compiled(x, n))
    assert kiln.report_of(compiled).compiles == most and not kiln.report_of(compiled).breaks
