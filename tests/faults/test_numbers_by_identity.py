"""`is` between numbers that change: small integers are one object each, others are who they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager

THREE, FOUR = 3, 4
Program = Callable[[Tensor, Any], Any]


def chosen(x: Tensor, n: int) -> Tensor:
    return x * 3 if n is THREE else x + n


def of_a_size(x: Tensor, n: int) -> Any:
    return x + 1, x.shape[0] is THREE, x.size(0) is n, x.shape[0] is not x.size(0)


def computed(x: Tensor, n: int) -> Any:
    return x + 1, (n + 1) is FOUR, (n + 1) is (n + 1), n - 1 is n


def itself(x: Tensor, n: float) -> Any:
    return x + 1, int(n) is n, float(n) is n, n is n


def over_a_break(x: Tensor, n: float) -> Any:
    part = n.real
    time.time()
    return x + 1, part is n


@pytest.mark.filterwarnings("error:(?s).*KILN9001")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [chosen, of_a_size, computed, itself, over_a_break])
def test_like_eager(program: Program, dynamic: bool | None) -> None:
    compiled = kiln.compile(program, dynamic=dynamic)
    for number in (2, 3, 1, 4, 3, 257, 1000, 3):
        assert_like_eager(compiled, program, torch.ones(min(number, 9)), number)
    for real in (2.5, 3.5, 4.5):
        assert_like_eager(compiled, program, torch.ones(2), real)


def test_one_variant_for_all_numbers_but_those_asked_for() -> None:
    compiled = kiln.compile(chosen)
    for number in (2, 3, 1, 4, 5, 6, 300, 3):
        assert_like_eager(compiled, chosen, torch.ones(2), number)
    assert kiln.report_of(compiled).compiles <= 4
