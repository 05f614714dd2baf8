"""A function with breaks or side effects that stays slower than eager is found out by turns. The clock is a fake."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.api.compiler import session_of
from kiln.pipeline.session import KilnWarning
from kiln.pipeline.turns import EACH, FIRST, SPACING

X = torch.ones(3)
LAST = FIRST + 2 * EACH - 1
"""The number of the last call of the first turns."""


class Clock:
    """Compiled and eager calls last as long as it is told; it is looked at before and after each."""

    def __init__(self, compiled: float, eager: float) -> None:
        self.times = {False: compiled, True: eager}
        self.looks, self.now = 0, 0.0

    def __call__(self) -> float:
        if self.looks % 2:
            self.now += self.times[(self.looks // 2) % 4 in (1, 2)]
        self.looks += 1
        return self.now


def timed(function: Callable[..., Any], compiled: float, eager: float, **options: Any) -> tuple[Any, Clock]:
    made, clock = kiln.compile(function, options={"cache": False, **options}), Clock(compiled, eager)
    session_of(made).clock = clock
    return made, clock


def run(function: Callable[..., Any], times: int, *args: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KilnWarning)
        for _ in range(times):
            function(*args)
    return [str(found.message) for found in caught if issubclass(found.category, KilnWarning)]


def counting(x: Tensor, log: list[float]) -> Tensor:
    log.append(x.numel())
    return x.sin() * 2


def test_a_function_with_side_effects_is_put_to_eager() -> None:
    fast, clock = timed(counting, 3e-3, 1e-3)
    log: list[float] = []
    assert run(fast, LAST - 1, X, log) == []
    (problem,) = run(fast, 1, X, log)
    assert "KILN1094" in problem and "3000 us" in problem and "1000 us" in problem
    looks = clock.looks
    assert run(fast, 50, X, log) == [] and clock.looks == looks
    assert fast.entries[0].callable is counting
    assert log == [3.0] * (LAST + 50)  # each call was made once


def test_a_function_with_a_break_is_put_to_eager() -> None:
    calls: list[int] = []

    @torch.compiler.disable
    def outside(x: Tensor) -> Tensor:
        calls.append(1)
        return x + 1

    def program(x: Tensor, log: list[float]) -> Tensor:
        y = outside(x * 2) * 3
        log.append(1.0)  # the part behind the break is not compared by itself
        return y

    fast, _ = timed(program, 3e-3, 1e-3)
    assert any("KILN1094" in text for text in run(fast, LAST, X, []))
    assert len(calls) == LAST


@pytest.mark.parametrize("compiled", [1e-3, 1.05e-3, 0.5e-3])
def test_others_stay_compiled_and_the_next_turns_come_late(compiled: float) -> None:
    fast, clock = timed(counting, compiled, 1e-3)
    log: list[float] = []
    assert run(fast, LAST + FIRST * SPACING - 1, X, log) == [] and clock.looks == 4 * EACH
    assert run(fast, 2 * EACH, X, log) == [] and clock.looks == 8 * EACH
    assert len(log) == LAST + FIRST * SPACING - 1 + 2 * EACH


def with_noise(x: Tensor, log: list[float]) -> Tensor:
    log.append(1.0)
    return x + torch.rand(3)


def told(x: Tensor, log: list[float]) -> Tensor:
    log.append(2.0 if kiln.is_compiling() else 1.0)
    return x * 2


@pytest.mark.parametrize("program", [with_noise, told])
def test_what_eager_does_otherwise_takes_no_turns(program: Callable[..., Tensor]) -> None:
    fast, clock = timed(program, 3e-3, 1e-3)
    assert run(fast, 2 * LAST, X, []) == [] and clock.looks == 0


def test_with_random_numbers_of_eager_there_are_turns() -> None:
    fast, clock = timed(with_noise, 1e-3, 1e-3, random="eager")
    torch.manual_seed(0)
    found = [fast(X, []) for _ in range(LAST)]
    torch.manual_seed(0)
    assert clock.looks and all(torch.equal(one, with_noise(X, [])) for one in found)


def test_a_backward_that_may_follow_ends_the_turns() -> None:
    fast, clock = timed(counting, 3e-3, 1e-3)
    assert run(fast, 2 * LAST, X.clone().requires_grad_(), []) == [] and clock.looks == 2


def test_an_exception_of_the_program_passes_through() -> None:
    def checked(x: Tensor, log: list[float]) -> Tensor:
        log.append(1.0)
        if len(log) % 2:
            raise ValueError("odd")
        return x * 2

    fast, _ = timed(checked, 1e-3, 1e-3)
    log: list[float] = []
    for number in range(1, LAST):
        if number % 2:
            with pytest.raises(ValueError, match="odd"):
                fast(X, log)
        else:
            assert torch.equal(fast(X, log), X * 2)


def test_a_variant_from_disk_takes_turns(tmp_path: Path) -> None:
    for _ in range(2):
        fast, clock = timed(counting, 3e-3, 1e-3, cache=True, cache_dir=str(tmp_path))
        assert any("KILN1094" in text for text in run(fast, LAST, X, []))
    assert kiln.report_of(fast).loaded == 1 and clock.looks
