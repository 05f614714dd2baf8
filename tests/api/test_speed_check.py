"""A variant that stays slower than eager is found at run time, and eager runs instead. Clocks are of the tests."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.api.compiler import session_of
from kiln.native._frames import set_enabled
from kiln.pipeline import second_run, speed_check
from kiln.pipeline.second_run import EagerTrial, NewNodes, edges_from_outside
from kiln.pipeline.session import KilnWarning
from kiln.pipeline.speed_check import EARLY, FIRST, LONG, ROUNDS, SPACING, SpeedCheck
from kiln.pipeline.turns import Turns
from kiln.runtime.variant import SecondRun

X = torch.ones(3)


class Timing:
    """A clock by which the compiled runs of a dispatcher last `compiled` seconds, those of eager `eager`.

    It is looked at twice in an early call, then before and after each of the two runs, whose order changes with each
    comparison in a row.
    """

    def __init__(self, compiled: float, eager: float) -> None:
        self.compiled, self.eager = compiled, eager
        self.now, self.looks, self.streak = 0.0, -2, 0

    def __call__(self) -> float:
        if self.looks % 2:
            first = self.looks % 4 == 1
            is_compiled = self.looks < 0 or first != (self.streak % 2 == 1)
            self.now += self.compiled if is_compiled else self.eager
        self.looks += 1
        if self.looks > 0 and self.looks % 4 == 0:
            self.streak = self.streak + 1 if self.compiled > self.eager else 0
        return self.now

    @property
    def comparisons(self) -> int:
        return max(self.looks, 0) // 4


def timed(function: Callable[..., Any], compiled: float, eager: float, **options: Any) -> tuple[Any, Timing]:
    made, clock = kiln.compile(function, **options), Timing(compiled, eager)
    session_of(made).clock = clock
    return made, clock


def double(x: Tensor) -> Tensor:
    return x.sin() * 2


def run(function: Callable[..., Any], times: int, *args: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KilnWarning)
        for _ in range(times):
            function(*args)
    return [str(found.message) for found in caught if issubclass(found.category, KilnWarning)]


def test_a_slower_variant_is_put_to_eager() -> None:
    fast, clock = timed(double, compiled=3e-3, eager=1e-3)
    compiled = fast(X)
    assert run(fast, FIRST + ROUNDS - 3, X) == [] and clock.comparisons == ROUNDS - 1
    (problem,) = run(fast, 1, X)
    assert "KILN1098" in problem and "3000 us" in problem and "1000 us" in problem
    assert "KILN1098" in str(fast.report())
    assert run(fast, 1000, X) == [] and clock.comparisons == ROUNDS
    torch.testing.assert_close(fast(X), compiled)
    assert fast.entries[0].callable is double


def test_its_guards_still_hold_for_the_same_arguments_only() -> None:
    fast, _ = timed(double, compiled=3e-3, eager=1e-3, dynamic=False)
    run(fast, FIRST + ROUNDS, X)
    fast(torch.ones(5))
    eager, compiled = fast.entries
    assert eager.callable is double and compiled.callable is not double


def test_a_good_variant_is_compared_ever_less() -> None:
    fast, clock = timed(double, compiled=1e-3, eager=1e-3)
    assert run(fast, FIRST * (1 + SPACING + SPACING**2), X) == []
    assert clock.comparisons == 3


def test_one_slow_call_decides_nothing() -> None:
    fast, clock = timed(double, compiled=3e-3, eager=1e-3)
    run(fast, FIRST, X)
    clock.compiled = 1e-3
    assert run(fast, 10, X) == [] and clock.comparisons == 3


def test_a_variant_that_becomes_slow_is_found_later() -> None:
    fast, clock = timed(double, compiled=1e-3, eager=1e-3)
    run(fast, FIRST, X)
    clock.compiled = 3e-3
    (problem,) = run(fast, FIRST * SPACING + ROUNDS, X)
    assert "KILN1098" in problem


def test_some_microseconds_are_no_reason() -> None:
    fast, clock = timed(double, compiled=15e-6, eager=5e-6)
    assert run(fast, 3 * FIRST, X) == [] and clock.comparisons == 1


def test_a_long_call_is_compared_at_once() -> None:
    fast, clock = timed(double, compiled=2 * LONG, eager=2 * LONG)
    assert run(fast, EARLY + 1, X) == [] and clock.comparisons == 1


@pytest.mark.parametrize("gradients", [False, True])
def test_where_memory_is_short_now_calls_are_compared_later(monkeypatch: pytest.MonkeyPatch, gradients: bool) -> None:
    monkeypatch.setattr(second_run, "available_memory", lambda: 0)
    fast = kiln.compile(double)
    session_of(fast).clock = clock = StepTiming(1e-3, 1e-3)
    x = X.clone().requires_grad_(gradients)
    run(fast, 2 * FIRST, x)
    assert clock.stretches["eager"] == 0
    monkeypatch.undo()
    run(fast, FIRST * SPACING, x)
    assert clock.stretches["eager"] == 1


def test_memory_that_cannot_be_read_ends_the_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_run, "available_memory", lambda: int("unknown"))
    fast, _ = timed(double, compiled=1e-3, eager=1e-3)
    assert run(fast, 2 * FIRST, X) == []


class StepTiming:
    """A clock by which each stretch of compiled code lasts `compiled` seconds, each of eager `eager`.

    Dispatchers are switched off while eager runs. Stretches: forward and backward of each.
    """

    def __init__(self, compiled: float, eager: float) -> None:
        self.compiled, self.eager = compiled, eager
        self.now, self.looks = 0.0, 0
        self.stretches = {"compiled": 0, "eager": 0}

    def __call__(self) -> float:
        enabled = set_enabled(True)
        set_enabled(enabled)
        self.looks += 1
        if self.looks % 2 == 0:
            self.now += self.compiled if enabled else self.eager
            self.stretches["compiled" if enabled else "eager"] += 1
        return self.now


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.calls: int = getattr(self, "calls", 0) + 1
        return x * 2


def writes(x: Tensor) -> Tensor:
    return x.add_(1)


def draws(x: Tensor) -> Tensor:
    return x + torch.rand(3)


def breaks(x: Tensor) -> Tensor:
    time.sleep(0)
    return x * 2


def asks(x: Tensor) -> Tensor:
    return x * 2 if kiln.is_compiling() else x + x


LOG: list[int] = []


def leaves_early(x: Tensor) -> Tensor:
    if (x > 0).all():
        return x * 2
    LOG.append(1)
    return x.sin()


def refuses(x: Tensor) -> None:
    if (x < 0).any():
        raise ValueError


def catches(x: Tensor) -> Tensor:
    try:
        refuses(x)
    except ValueError:
        LOG.append(1)
    return x * 2


@pytest.fixture
def no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and eager calls do not take turns (`test_turns.py`)."""
    monkeypatch.setattr(Turns, "start", lambda *_: None)


@pytest.mark.usefixtures("no_turns")
@pytest.mark.parametrize(
    ("program", "x"),
    [
        *((Counting(), X), (writes, torch.zeros(5 << 20)), (asks, X), (leaves_early, X.int()), (catches, X)),
        (writes, X.clone().requires_grad_() * 1),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_program_would_notice_does_not_run_twice(program: Any, x: Tensor) -> None:
    compiled, clock = timed(program, compiled=3e-3, eager=1e-3)
    assert run(compiled, 3 * FIRST, x) == [] and clock.comparisons == 0


@pytest.mark.parametrize("program", [leaves_early, catches])
def test_the_other_path_of_a_program_does_not_run_twice(program: Any) -> None:
    compiled, _ = timed(program, compiled=3e-3, eager=1e-3)
    compiled(X.int())
    LOG.clear()
    run(compiled, 3 * FIRST, -X.int())
    assert len(LOG) == 3 * FIRST


def test_a_module_whose_forward_collects_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    fast, _ = timed(model, compiled=3e-3, eager=1e-3)
    with torch.no_grad():
        (problem,) = run(fast, FIRST + ROUNDS, X)
        assert "Sequential" in problem and "KILN1098" in problem
        torch.testing.assert_close(fast(X), model(X))


@pytest.mark.parametrize("arguments", [{"fullgraph": True}, {"options": {"speed_check": False}}], ids=str)
def test_where_eager_is_not_wanted_nothing_is_compared(arguments: dict[str, Any]) -> None:
    fast, clock = timed(double, compiled=3e-3, eager=1e-3, **arguments)
    assert run(fast, 3 * FIRST, X) == [] and clock.comparisons == 0


def test_a_variant_from_the_disk_is_compared_too(tmp_path: Path) -> None:
    options = {"options": {"cache_dir": str(tmp_path), "cache": True}}
    kiln.compile(double, **options)(X)
    fast, _ = timed(double, compiled=3e-3, eager=1e-3, **options)
    (problem,) = run(fast, FIRST + ROUNDS, X)
    assert "KILN1098" in problem and fast.report().loaded == 1


@pytest.mark.usefixtures("no_turns")
def test_what_follows_a_break_is_compared_what_precedes_it_is_not() -> None:
    fast, _ = timed(breaks, compiled=3e-3, eager=1e-3)
    (problem,) = run(fast, FIRST + ROUNDS, X)
    assert "`breaks after line" in problem
    torch.testing.assert_close(fast(X), X * 2)


def test_an_eager_run_that_raises_ends_the_comparisons() -> None:
    fast, clock = timed(double, compiled=3e-3, eager=1e-3)
    fast(X)
    refuse = fast.entries[0]
    trial = EagerTrial(SecondRun(), double, refused)
    check = SpeedCheck(refuse, trial, lambda *_: pytest.fail("not slower"), clock)
    check.is_early = False
    refuse.sample_after(1, check)
    torch.testing.assert_close(fast(X), double(X))
    assert run(fast, 3 * FIRST, X) == []


def refused(x: Tensor) -> Tensor:
    raise MemoryError


class Net(nn.Module):
    """Writes statistics and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor | tuple[Tensor, ...]]:
        hidden = nn.functional.dropout(self.norm(self.first(x)).relu(), 0.5)
        return {"hidden": (hidden,), "out": self.second(hidden)}


def trained(
    compiled: float, eager: float, times: int, checked: bool = True
) -> tuple[Any, Any, list[str], list[Tensor]]:
    """Steps of a model: its compiled form, the clock, the warnings, and what a program can see of the steps."""
    torch.manual_seed(0)
    model = Net()
    fast = kiln.compile(model, options={"random": "eager", "speed_check": checked, "cache": False})
    session_of(fast).clock = clock = StepTiming(compiled, eager)
    seen, before = [], torch.randn(6, 3, requires_grad=True)
    before.register_hook(lambda gradient: seen.append(gradient.clone()))
    said = []
    for _ in range(times):
        said += run(lambda: step(fast, model, before * 1, seen), 1)
    return fast, clock, said, [*seen, *model.buffers(), torch.get_rng_state()]


def step(fast: Any, model: nn.Module, x: Tensor, seen: list[Tensor]) -> None:
    fast(x)["out"].square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            seen += [parameter.grad, torch.tensor(parameter._version)]
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def test_a_slower_training_step_is_put_to_eager() -> None:
    fast, clock, said, _ = trained(3e-3, 1e-3, FIRST + 2 * ROUNDS + 1)
    assert len(said) == 1 and "KILN1098" in said[0] and "6000 us" in said[0] and "2000 us" in said[0]
    assert clock.stretches == {
        "compiled": 2 * (ROUNDS + 1) + 1,
        "eager": 2 * ROUNDS,
    }  # forward and backward; one early call
    assert fast.report().eager == 1


def test_a_good_training_step_runs_in_eager_once() -> None:
    _, clock, said, _ = trained(1e-3, 1e-3, 3 * FIRST)
    assert not said and clock.stretches["eager"] == 2


def test_a_program_does_not_notice_that_its_training_step_is_compared() -> None:
    *_, compared = trained(3e-3, 1e-3, FIRST + 2 * ROUNDS - 1)
    *_, plain = trained(3e-3, 1e-3, FIRST + 2 * ROUNDS - 1, checked=False)
    for one, other in zip(compared, plain, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("program", [writes, draws])
def test_what_a_call_writes_and_draws_is_put_back(program: Any) -> None:
    def results(checked: bool) -> list[Tensor]:
        torch.manual_seed(0)
        fast, x = kiln.compile(program, options={"speed_check": checked, "random": "eager"}), torch.zeros(3)
        session_of(fast).clock = Timing(compiled=3e-3, eager=1e-3)
        run(fast, FIRST + 3, x)
        return [x, fast(x).clone(), torch.get_rng_state(), torch.tensor(x._version)]

    for one, other in zip(results(True), results(False), strict=True):
        assert torch.equal(one, other)


def test_a_forward_without_a_backward_is_compared_alone() -> None:
    x = X.clone().requires_grad_()
    fast = kiln.compile(double)
    session_of(fast).clock = StepTiming(3e-3, 1e-3)
    (problem,) = run(fast, FIRST + 12 * ROUNDS, x)
    assert "3000 us" in problem


@pytest.mark.parametrize("watch", ["hook", "retain"])
def test_gradients_that_a_program_watches_are_seen_once(watch: str) -> None:
    fast = kiln.compile(double)
    session_of(fast).clock = StepTiming(3e-3, 1e-3)
    seen: list[Tensor] = []
    for _ in range(2 * FIRST):
        x = X.clone().requires_grad_() * 1
        x.register_hook(seen.append) if watch == "hook" else x.retain_grad()
        fast(x).sum().backward()
        assert watch == "hook" or x.grad is not None
    assert len(seen) == (2 * FIRST if watch == "hook" else 0)


@pytest.mark.parametrize("nested", [False, True])
def test_a_call_on_a_result_of_the_same_weights_is_compared(nested: bool) -> None:
    """The engine is not to reach the weights through the program's own graph, which would be freed."""
    cell = nn.Linear(3, 3)
    fast = kiln.compile(lambda state: cell(state[0] if nested else state).tanh(), options={"cache": False})
    session_of(fast).clock = clock = StepTiming(1e-3, 1e-3)
    for _ in range(FIRST):
        state = torch.ones(2, 3)
        for _ in range(3):
            state = fast([state * 2] if nested else state * 2)
        state.sum().backward()
    assert clock.stretches["eager"] > 1


@pytest.mark.parametrize("busy", ["caller", "worker"])
def test_what_another_thread_recorded_stays_the_programs(busy: str) -> None:
    """Threads number gradient functions for themselves: those of the busy one look newer, or as new as the call's."""
    fast: Any = kiln.compile(lambda x: x.sin() * x)
    session_of(fast).clock = StepTiming(3e-3, 1e-3)
    weight, calls = torch.ones(3, requires_grad=True), []

    def outer() -> Tensor:
        doubled = weight * 2
        doubled.register_hook(calls.append)
        return doubled.exp()

    with ThreadPoolExecutor(1) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", KilnWarning)
        local, remote = (lambda work, *args: work(*args)), (lambda work, *args: pool.submit(work, *args).result())
        record, call = (local, remote) if busy == "caller" else (remote, local)
        behind = call(torch._C._autograd._get_sequence_nr) - record(torch._C._autograd._get_sequence_nr)
        record(lambda: [weight * 2 for _ in range(behind + 1000)])
        for _ in range(2 * FIRST):
            call(fast, record(outer)).sum().backward()
    assert len(calls) == 2 * FIRST


def test_a_number_of_another_thread_within_those_of_the_call() -> None:
    with ThreadPoolExecutor(1) as pool:
        weight = torch.ones(3, requires_grad=True)
        here = torch._C._autograd._get_sequence_nr()
        there = pool.submit(torch._C._autograd._get_sequence_nr).result()
        pool.submit(lambda: [weight * 2 for _ in range(here + 1 - there)]).result()
        given = pool.submit(weight.exp).result()
    new = NewNodes((given,))
    steps = [weight * 2, weight * 2, weight * 2, given.sin()]
    new.end()
    later = steps[0] * 2
    assert given.grad_fn is not None and given.grad_fn._sequence_nr() in [
        step.grad_fn._sequence_nr() for step in steps if step.grad_fn is not None
    ]
    assert given.grad_fn not in new and later.grad_fn not in new
    assert all(step.grad_fn in new for step in steps)
    assert edges_from_outside([steps[-1]], new) == [(given.grad_fn, 0)]


class Stream:
    """A stopwatch whose times are known `late` marks later, like those of a GPU's stream."""

    def __init__(self, clock: Callable[[], float], late: int) -> None:
        self.clock, self.late, self.marks = clock, late, 0
        self.at: dict[float, int] = {}

    def mark(self) -> float:
        self.marks += 1
        now = self.clock() + self.marks * 1e-9
        self.at[now] = self.marks
        return now

    def seconds(self, start: float, end: float) -> float | None:
        self.marks += 1
        return end - start if self.marks - self.at[end] > self.late else None


@pytest.mark.parametrize("late", [0, 12])
def test_times_that_are_known_later(monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    monkeypatch.setattr(speed_check, "stopwatch_of", lambda _, clock: Stream(clock, late))
    _, _, said, _ = trained(3e-3, 1e-3, FIRST + 10 * ROUNDS)
    assert len(said) == 1 and "KILN1098" in said[0]
