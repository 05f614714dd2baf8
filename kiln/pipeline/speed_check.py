"""Times a variant against eager now and then; a variant that is slower is replaced by eager.

    call 16                       runs compiled and in eager; the compiled result is returned
    eager was not faster          the next comparison comes after 128 calls, then after 1,024, ...
    eager was faster              the next calls are compared too
    seven times (one may differ)  eager runs from then on (KILN1098)

Only variants that can run twice are compared: without gradients, random numbers, writes, side effects, graph breaks and
side exits, on the CPU. So a program sees nothing of a comparison but its time.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import final

import torch

from kiln.capture.interpreter.capture import Capture
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import all_nodes
from kiln.graph.prims.table import Kind
from kiln.graph.trace import Trace
from kiln.native._frames import BoundCall, Dispatcher, Entry, set_enabled
from kiln.pipeline.targets import device_of
from kiln.runtime.variant import Variant
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

FIRST, SPACING = 16, 8
"""The number of the first call that is compared; how many times further away each next one is."""
ROUNDS, TOLERATED = 7, 1
"""Calls in a row that are compared before a variant is given up; how many of them eager may lose."""
FACTOR, LEAST = 1.1, 20e-6
"""A compiled call is slower than eager if it takes more than `FACTOR` times as long, and `LEAST` seconds longer."""

Clock = Callable[[], float]


class SlowerThanEager(KilnError):
    code = "KILN1098"
    what = "`{function}` runs eager from now on for arguments like these: compiled it takes {compiled:.0f} us per call"
    why = "eager takes {eager:.0f} us (the shortest of {rounds} calls that ran both ways)"
    try_ = (
        "report it with KILN_DUMP=folder: a kernel is slower than it should be",
        "keep the compiled variant all the same: options={{'speed_check': False}}",
    )


def can_run_twice(capture: Capture) -> bool:
    """Whether a program cannot tell that the call ran again, in eager."""
    changes = capture.breaks or capture.effects or capture.may_leave or capture.says_is_compiling
    return not changes and all(changes_nothing(region.trace) for region in capture.regions)


def changes_nothing(trace: Trace) -> bool:
    return not trace.needs_grad and not trace.graph.writes and repeatable(trace.graph)


def repeatable(graph: Graph) -> bool:
    """Whether it has the same results each time, and is on the CPU."""
    nodes = [*graph.inputs, *all_nodes(graph)]
    return all(is_on_cpu(node) and is_repeatable(node) for node in nodes)


def is_on_cpu(node: Node) -> bool:
    device = device_of(node.spec)
    return device is None or device.type == "cpu"


def is_repeatable(node: Node) -> bool:
    if node.op.kind is Kind.LIBRARY:
        return str(node.attrs["target"]).startswith("aten.")  # what others do is not known
    return node.op.kind is not Kind.RANDOM and node.op.name != "opaque"


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
class SpeedCheck:
    """What an entry calls instead of its callable where the call is compared. It holds neither entry nor dispatcher."""

    def __init__(
        self, entry: Entry, eager: Callable[..., object], on_slow: SlowEntry, clock: Clock = time.perf_counter
    ) -> None:
        self.variant: Variant = entry.info
        self.collects = isinstance(entry.callable, BoundCall)
        self.eager, self.on_slow, self.clock = eager, on_slow, clock
        self.rounds: list[Round] = []
        self.spacing = FIRST
        self.dispatcher: Callable[[], Dispatcher | None] = lambda: None

    def start(self, dispatcher: Dispatcher, entry: Entry) -> None:
        """Compare call number `FIRST` of `entry`, which is to be one of `dispatcher`."""
        self.dispatcher = weakref.ref(dispatcher)
        self.arm(entry, self.spacing)

    def arm(self, entry: Entry, calls: int) -> None:
        run = BoundCall(entry.tree, self) if self.collects and entry.tree is not None else self
        entry.sample_after(calls, run)

    def compare_after(self, calls: int) -> None:
        for _, entry in self.entries():
            self.arm(entry, calls)

    def entries(self) -> Iterator[tuple[Dispatcher, Entry]]:
        """The entry of the variant, unless it is gone."""
        dispatcher = self.dispatcher()
        if dispatcher is None:
            return
        for entry in dispatcher.entries:
            if entry.info is self.variant:
                yield dispatcher, entry

    def __call__(self, *slots: object) -> object:
        if torch._C._autograd._profiler_enabled():
            self.compare_after(1)
            return self.variant.function(*slots)
        eager_first = len(self.rounds) % 2 == 1  # the second run finds its inputs in the caches of the CPU
        eager = self.time_eager(slots) if eager_first else None
        start = self.clock()
        result = self.variant.function(*slots)
        compiled = self.clock() - start
        if not eager_first:
            eager = self.time_eager(slots)
        if eager is not None:
            self.judge(Round(compiled, eager))
        return result

    def time_eager(self, slots: tuple[object, ...]) -> float | None:
        """Seconds; None if it raises, which ends the comparisons."""
        given = slots[:-1] if self.collects else slots
        enabled = set_enabled(False)
        try:
            start = self.clock()
            self.eager(*given)
            return self.clock() - start
        except Exception:
            return None
        finally:
            set_enabled(enabled)

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
                for dispatcher, entry in self.entries():
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
