"""Times a function that cannot run twice: compiled and eager calls take turns.

    calls 8 to 23     compiled, eager, eager, compiled, compiled, ...: eight of each
    eager was faster  eager runs from then on (KILN1094)
    else              the next turns come after 1,024 calls, then after 131,072

For functions with graph breaks or side effects: each call is made once, by the variant or by the program's own code.
The numbers of the calls do not depend on what is measured, so a program gives the same results in each process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from kiln.native._frames import Dispatcher, Entry
from kiln.pipeline.sampled_entry import Sample, SampledEntry
from kiln.pipeline.second_run import tensors_in
from kiln.pipeline.speed_check import FACTOR, Round, SlowEntry
from kiln.pipeline.stopwatch import Clock
from kiln.support.errors import KilnError

FIRST, SPACING, EACH = 8, 128, 8
"""Number of the first call that is timed; how many times further away the next ones are; calls of each kind."""
TYPICAL = 3
"""The shortest calls that are compared: others may have compiled something, or have been compared themselves."""
LEAST = 5e-6
"""Seconds by which a compiled call must be longer."""


class SlowerInTurns(KilnError):
    code = "KILN1094"
    what = "`{function}` runs eager from now on for arguments like these: compiled it takes {compiled:.0f} us per call"
    why = "eager takes {eager:.0f} us (the shortest of {rounds} calls each), which enters no parts between graph breaks"
    try_ = (
        "remove the graph breaks that the report lists",
        "compile the functions that compute instead of their caller",
        "keep the compiled variant all the same: options={{'speed_check': False}}",
    )


@final
class Turns:
    """What an entry calls instead of its callable where a call is timed. It holds neither entry nor dispatcher."""

    def __init__(
        self, entry: Entry, eager: Sample, *, is_fit: Callable[[], bool], on_slow: SlowEntry, clock: Clock
    ) -> None:
        """`is_fit` is asked once the parts between graph breaks are compiled."""
        self.entry = SampledEntry(entry)
        self.eager, self.is_fit, self.on_slow, self.clock = eager, is_fit, on_slow, clock
        self.compiled_times: list[float] = []
        self.eager_times: list[float] = []
        self.spacing = FIRST

    def start(self, dispatcher: Dispatcher, entry: Entry) -> None:
        """Time calls of `entry`, which is to be one of `dispatcher`."""
        self.entry.start(dispatcher, entry, FIRST, self)

    def __call__(self, *slots: object) -> object:
        turn = len(self.compiled_times) + len(self.eager_times)
        is_eager = turn % 4 in (1, 2)
        if turn == 0 and not self.is_fit():
            return self.entry.variant.function(*slots)
        self.entry.after(1, self)  # also after an exception
        if torch._C._autograd._profiler_enabled():
            return self.entry.variant.function(*slots)
        start = self.clock()
        result = self.eager(*self.entry.given(slots)) if is_eager else self.entry.variant.function(*slots)
        (self.eager_times if is_eager else self.compiled_times).append(self.clock() - start)
        if leaves_gradients(result):
            self.entry.after(0, self)  # never: the time of the backward is not known
        elif turn == 2 * EACH - 1:
            self.judge()
        return result

    def judge(self) -> None:
        compiled, eager = sorted(self.compiled_times), sorted(self.eager_times)
        self.compiled_times, self.eager_times = [], []
        pairs = list(zip(compiled[:TYPICAL], eager, strict=False))
        if all(slow > max(FACTOR * fast, fast + LEAST) for slow, fast in pairs):
            for dispatcher, entry in self.entry.entries():
                self.on_slow(dispatcher, entry, Round(*pairs[0]))
        else:
            self.spacing *= SPACING
            self.entry.after(self.spacing, self)


def leaves_gradients(result: object) -> bool:
    """Whether a backward may follow."""
    return torch.is_grad_enabled() and any(tensor.grad_fn is not None for tensor in tensors_in(result))


def slower_in_turns(function: str, shortest: Round) -> SlowerInTurns:
    return SlowerInTurns(function=function, compiled=shortest.compiled * 1e6, eager=shortest.eager * 1e6, rounds=EACH)
