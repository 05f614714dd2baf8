"""A program that would be compiled for ever runs eager; one that runs on is compiled in the end."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.api.compiler import session_of
from kiln.pipeline.backward import BackwardCompiler
from kiln.pipeline.compile_budget import LOOKS, CompileBudget, CompileBudgetSpent
from kiln.pipeline.session import KilnWarning

X = torch.ones(3)


class Clock:
    """Seconds that pass only where a test says so, and `step` at each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def compile_for(budget: CompileBudget, clock: Clock, seconds: float) -> None:
    with budget.compiling():
        clock.now += seconds
        for _ in range(LOOKS):
            budget.check()


def test_seconds_that_may_be_compiled() -> None:
    clock = Clock()
    budget = CompileBudget("f", 60, clock)
    assert budget.left == 60
    compile_for(budget, clock, 50)
    assert not budget.is_spent() and budget.left == 10
    clock.now += 4  # the program runs
    assert budget.left == 50
    clock.now += 96
    assert budget.left == pytest.approx(10 + 300 + 7)
    with pytest.raises(CompileBudgetSpent, match="compiled for 450 s"):
        compile_for(budget, clock, 400)
    assert budget.is_spent() and budget.news() is not None and budget.news() is None


def test_after_a_compile_that_was_given_up_there_must_be_time_for_twice_as_much() -> None:
    clock = Clock()
    budget = CompileBudget("f", 60, clock)
    with pytest.raises(CompileBudgetSpent):
        compile_for(budget, clock, 61)
    clock.now += 12
    assert budget.left == 119 and budget.is_spent()
    clock.now += 1
    assert not budget.is_spent()
    compile_for(budget, clock, 100)


def test_compiles_that_still_run_count() -> None:
    clock = Clock()
    budget = CompileBudget("f", 60, clock)
    with budget.compiling():
        clock.now += 20
        assert budget.left == 40  # seen by another thread: the program has not run meanwhile
        with budget.counting():  # a backward that another thread compiles at the same time
            clock.now += 10
        assert budget.left == 30
    with budget.counting():
        clock.now += 40
        assert budget.is_spent()
    assert budget.left == -10


def test_a_compile_inside_of_a_compile_leaves_its_limit() -> None:
    clock = Clock()
    budget = CompileBudget("f", 60, clock)
    with pytest.raises(CompileBudgetSpent), budget.compiling():
        compile_for(budget, clock, 50)
        clock.now += 20
        for _ in range(LOOKS):
            budget.check()


def test_a_backward_counts_as_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, find = Clock(), BackwardCompiler.find_or_compile

    def slow(self: BackwardCompiler, needed: Any, given: Any) -> Any:
        clock.now += 100
        return find(self, needed, given)

    monkeypatch.setattr(BackwardCompiler, "find_or_compile", slow)
    compiled: Any = kiln.compile(lambda x: (x * 2).sin())
    budget = session_of(compiled).budget = CompileBudget("f", 60, clock)
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(2 * torch.ones(3)))
    assert budget.left == -40 and budget.is_spent()


def test_reset_gives_a_new_budget() -> None:
    clock = Clock()
    compiled: Any = kiln.compile(changing)
    budget = session_of(compiled).budget = CompileBudget("changing", 60, clock)
    compile_for(budget, clock, 59)
    clock.now += 1e-3
    with budget.counting():
        clock.now += 100
    assert budget.is_spent()
    session_of(compiled).reset()
    torch.testing.assert_close(compiled(X, "a"), X + 1)
    assert compiled.report().eager == 0


def test_no_limit() -> None:
    clock = Clock()
    budget = CompileBudget("f", 0, clock)
    compile_for(budget, clock, 1e6)
    assert not budget.is_spent()


def changing(x: Tensor, mode: str) -> Tensor:
    return x + len(mode)


def test_a_function_that_is_compiled_in_every_call_runs_eager() -> None:
    clock = Clock()

    def slow(module: torch.fx.GraphModule, inputs: Any) -> Any:
        clock.now += 25
        return module.forward

    compiled: Any = kiln.compile(changing, backend=slow, options={"variants": 100})
    session_of(compiled).budget = CompileBudget("changing", 60, clock)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(20):
            torch.testing.assert_close(compiled(X, "a" * number), X + number)
    assert compiled.report().compiles == 3
    assert [str(entry.message).count("KILN1093") for entry in caught] == [1]
    clock.now += 10  # the program runs on
    compiled(X, "b")
    assert compiled.report().compiles == 4 and "KILN1093" in str(compiled.report())


def test_a_capture_that_does_not_end_is_given_up() -> None:
    def step(x: Tensor) -> Tensor:
        return x + 1

    def long(x: Tensor) -> Tensor:
        for _ in range(1000):
            x = step(x)
        return x

    clock = Clock(step=1.0)
    compiled: Any = kiln.compile(long)
    session_of(compiled).budget = CompileBudget("long", 60, clock)
    torch.testing.assert_close(compiled(X), X + 1000)
    assert 60 < clock.now < 80
    with pytest.warns(KilnWarning, match="KILN1093"):
        torch.testing.assert_close(compiled(X), X + 1000)
    clock.step = 0.0
    clock.now += 100
    torch.testing.assert_close(compiled(X), X + 1000)
    assert compiled.report().regions == 1


def test_fullgraph_has_no_limit() -> None:
    assert session_of(kiln.compile(changing, fullgraph=True)).budget.seconds == 0
    assert session_of(kiln.compile(changing, options={"compile_budget": 7})).budget.seconds == 7
