"""A graph break in a loop: right for any number of iterations, with a bounded number of compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.pipeline.session import KilnWarning

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


@pytest.mark.parametrize("function", [counted, conditional])
def test_many_rounds(function: Any) -> None:
    compiled = kiln.compile(function, backend=eager_backend)
    torch.testing.assert_close(compiled(torch.zeros(2), 3), function(torch.zeros(2), 3))
    with pytest.warns(KilnWarning, match=r"(?s)KILN1092.*test_breaks_in_loops\.py"):
        torch.testing.assert_close(compiled(torch.zeros(2), 600), function(torch.zeros(2), 600))
    compiles = kiln.report_of(compiled).compiles
    assert compiles < 40
    SEEN.clear()
    torch.testing.assert_close(compiled(torch.zeros(2), 600), function(torch.zeros(2), 600))
    assert kiln.report_of(compiled).compiles <= compiles + 12
    assert SEEN in ([], [*range(600), *range(600)])


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
