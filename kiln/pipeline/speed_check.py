"""Times a variant against eager now and then; a variant that is slower is replaced by eager.

    call 16                       runs compiled and in eager; the compiled result is returned
    eager was not faster          the next comparison comes after 128 calls, then after 1,024, ...
    eager was faster              the next calls are compared too
    seven times (one may differ)  eager runs from then on (KILN1098)

A training step is compared with its backward, whose time is known once the program has run it:

    call 16     compiled; notes which results get gradients
    call 17     eager forward and backward of these, dropped; then compiled
    call 18     the backward of call 17 has run: compares, and so on

A variant whose third call takes `LONG` seconds is compared at once. What can run twice, and how the program does not
notice, stands in `second_run.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from kiln.native._frames import Dispatcher, Entry
from kiln.pipeline.sampled_entry import SampledEntry
from kiln.pipeline.second_run import BackwardWatch, EagerTrial, NewNodes, NoRoom, is_observed
from kiln.pipeline.stopwatch import Clock, Spans, Stopwatch, stopwatch_of
from kiln.runtime.variant import SecondRun
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

EARLY, FIRST, SPACING = 3, 16, 8
"""Numbers of a call that is timed, and of the first that is compared; how many times further away each next one is."""
LONG = 0.25
"""Seconds of the host."""
ROUNDS, TOLERATED = 7, 1
"""Calls in a row that are compared before a variant is given up; how many of them eager may lose."""
FACTOR, LEAST = 1.1, 20e-6
"""A compiled call is slower than eager if it takes more than `FACTOR` times as long, and `LEAST` seconds longer."""
PATIENCE = 8
"""Calls that pass until a backward, or the time of a GPU, is no longer waited for."""


class SlowerThanEager(KilnError):
    code = "KILN1098"
    what = "`{function}` runs eager from now on for arguments like these: compiled it takes {compiled:.0f} us per call"
    why = "eager takes {eager:.0f} us (the shortest of {rounds} calls that ran both ways)"
    try_ = (
        "report it with KILN_DUMP=folder: a kernel is slower than it should be",
        "keep the compiled variant all the same: options={{'speed_check': False}}",
    )


@final
@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of one call, run both ways."""

    compiled: float
    eager: float

    @property
    def is_slower(self) -> bool:
        return self.compiled > max(FACTOR * self.eager, self.eager + LEAST)


SlowEntry = Callable[[Dispatcher, Entry, Round], None]
"""Gets an entry that is slower than eager, with its shortest compiled and eager call."""


@final
class Comparison:
    """A call that is compared; `eager` is missing for the first of a training step."""

    def __init__(self, compiled: Spans, eager: Spans | None, wanted: frozenset[int] | None = None) -> None:
        self.compiled, self.eager, self.wanted = compiled, eager, wanted
        self.backward: BackwardWatch | None = None
        self.waited = 0

    def round(self) -> Round | None:
        """The two times; None where they are not known, or are those of different things."""
        if self.eager is None:
            return None
        if self.backward is not None and (self.backward.wanted != self.wanted or not self.backward.is_usual):
            return None
        compiled, eager = self.compiled.seconds(), self.eager.seconds()
        return None if compiled is None or eager is None else Round(compiled, eager)

    def is_over(self) -> bool:
        """Whether nothing is to be waited for."""
        self.waited += 1
        if self.waited > PATIENCE:
            return True
        if self.backward is not None and not self.backward.is_done:
            return False
        return self.eager is None or (self.compiled.seconds() is not None and self.eager.seconds() is not None)


@final
class SpeedCheck:
    """What an entry calls instead of its callable where the call is compared. It holds neither entry nor dispatcher."""

    def __init__(self, entry: Entry, trial: EagerTrial, on_slow: SlowEntry, clock: Clock = time.perf_counter) -> None:
        self.entry = SampledEntry(entry)
        self.variant = self.entry.variant
        self.trial, self.on_slow = trial, on_slow
        self.again: SecondRun = trial.again
        self.clock = clock
        self.stopwatch: Stopwatch = stopwatch_of(self.again.device, clock)
        self.rounds: list[Round] = []
        self.spacing = FIRST
        self.step: Comparison | None = None
        self.wanted: frozenset[int] | None = None
        """The results that got gradients in the last backward; None: not known."""
        self.is_early = True

    def start(self, dispatcher: Dispatcher, entry: Entry) -> None:
        """Compare calls of `entry`, which is to be one of `dispatcher`."""
        self.entry.start(dispatcher, entry, EARLY, self)

    def compare_after(self, calls: int) -> None:
        self.entry.after(calls, self)

    def __call__(self, *slots: object) -> object:
        if self.is_early:
            return self.call_early(slots)
        if is_observed(self.again):
            self.compare_after(1)
            return self.variant.function(*slots)
        if self.again.gradients:
            return self.call_with_gradients(slots)
        return self.call_both(slots)

    def call_early(self, slots: tuple[object, ...]) -> object:
        """Decide when the first comparison comes."""
        self.is_early = False
        start = self.clock()
        result = self.variant.function(*slots)
        self.compare_after(1 if self.clock() - start > LONG else FIRST - EARLY)
        return result

    def run_eager(self, given: tuple[object, ...], wanted: frozenset[int]) -> Spans | None:
        """None where it fails."""
        try:
            return self.trial.run(given, wanted, self.stopwatch)
        except NoRoom:
            self.pause()
            return None

    def call_both(self, slots: tuple[object, ...]) -> object:
        if self.step is not None:
            self.settle(self.step)
            return self.variant.function(*slots)
        given = self.entry.given(slots)
        eager_first = len(self.rounds) % 2 == 1  # the second run finds its inputs in the caches of the CPU
        eager = self.run_eager(given, frozenset()) if eager_first else None
        compiled = Spans(self.stopwatch)
        compiled.mark()
        result = self.variant.function(*slots)
        compiled.mark()
        if not eager_first:
            eager = self.run_eager(given, frozenset())
        if eager is not None:
            self.settle(Comparison(compiled, eager))
        return result

    def call_with_gradients(self, slots: tuple[object, ...]) -> object:
        if self.step is not None:
            was_scout = self.step.eager is None
            if not self.settle(self.step) or not was_scout:
                return self.variant.function(*slots)
        eager = None
        if self.wanted is not None:
            eager = self.run_eager(self.entry.given(slots), self.wanted)
            if eager is None:  # no room now, or it failed: no more comparisons
                return self.variant.function(*slots)
        self.step = Comparison(Spans(self.stopwatch), eager, self.wanted)
        new = NewNodes(slots)
        self.step.compiled.mark()
        result = self.variant.function(*slots)
        self.step.compiled.mark()
        new.end()
        self.step.backward = BackwardWatch(result, new, self.step.compiled)
        self.compare_after(1)
        return result

    def settle(self, step: Comparison) -> bool:
        """Judge a step, unless something is to be waited for."""
        if not step.is_over():
            self.step = step
            self.compare_after(1)
            return False
        self.step = None
        if step.backward is not None:
            self.wanted = step.backward.wanted
        latest = step.round()
        if latest is not None:
            self.judge(latest)
        elif step.eager is not None:
            self.pause()
        return True

    def judge(self, latest: Round) -> None:
        self.rounds.append(latest)
        lost = sum(not found.is_slower for found in self.rounds)
        if lost == len(self.rounds) or lost > TOLERATED:
            self.pause()
        elif len(self.rounds) < ROUNDS:
            self.compare_after(1)
        else:
            shortest = Round(min(r.compiled for r in self.rounds), min(r.eager for r in self.rounds))
            if shortest.is_slower:
                for dispatcher, entry in self.entry.entries():
                    self.on_slow(dispatcher, entry, shortest)
            else:
                self.pause()

    def pause(self) -> None:
        self.rounds.clear()
        self.spacing *= SPACING
        self.compare_after(self.spacing)


def slower_than_eager(function: str, shortest: Round) -> SlowerThanEager:
    return SlowerThanEager(
        function=function, compiled=shortest.compiled * 1e6, eager=shortest.eager * 1e6, rounds=ROUNDS
    )
