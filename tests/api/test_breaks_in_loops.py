"""A graph break in a loop: right for any number of iterations, with a bounded number of compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

SEEN: list[int] = []


@kiln.disable
def note(i: int) -> None:
    SEEN.append(i)


def counted(x: Tensor, rounds: int) -> Tensor:
    for i in range(rounds):
        x = x + i
        note(i)
        x = x * 0.5
    return x


def conditional(x: Tensor, rounds: int) -> Tensor:
    while x.sum() < rounds:
        x = x + 1
    return x


def eager_backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
    return module.forward


def with_iterators(x: Tensor, rounds: int) -> Tensor:
    numbers = [float(number) for number in range(rounds)]
    for position, (first, second) in enumerate(zip(numbers, reversed(numbers), strict=True)):
        note(position)
        x = x + first - second
    return x


def with_handlers(x: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        try:
            with torch.no_grad():
                if x.sum() > 9:
                    raise ValueError
                x = x + 1
        except ValueError:
            x = x * 0.5
    return x


def step(x: Tensor, limit: int) -> Tensor:
    if x.sum() > limit:
        return x * 0.5
    return x + 1


def with_calls(x: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        x = step(x, 9) + 0.25
    return x


LOOPS = [counted, conditional, with_iterators, with_handlers, with_calls]


@pytest.mark.parametrize("function", LOOPS)
def test_the_body_is_compiled_for_every_iteration(function: Any) -> None:
    compiled = kiln.compile(function, backend=eager_backend)
    for rounds in (3, 600):
        SEEN.clear()
        torch.testing.assert_close(compiled(torch.zeros(2), rounds), function(torch.zeros(2), rounds))
        assert SEEN in ([], [*range(rounds), *range(rounds)])
    report = kiln.report_of(compiled)
    assert report.eager == 0 and report.compiles <= 14, report
    compiled(torch.zeros(2), 600)
    assert kiln.report_of(compiled).compiles == report.compiles


def test_one_helper_at_many_places_is_no_loop() -> None:
    def shown(x: Tensor) -> Tensor:
        print(end="")
        return x * 2

    def function(x: Tensor) -> Tensor:
        x = shown(x + 1)
        x = shown(x + 2)
        x = shown(x + 3)
        x = shown(x + 4)
        x = shown(x + 5)
        x = shown(x + 6)
        return x - 1

    compiled, x = kiln.compile(function), torch.ones(2)
    torch.testing.assert_close(compiled(x), function(x))
    assert kiln.report_of(compiled).eager == 0
