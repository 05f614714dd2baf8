"""A plan that is recorded as CUDA graphs when it has been called before, and replayed from then on.

    run = GraphedPlan(executor, recordable, device, log)
    run(x)      runs plainly: what is made once, is made now (handles, tuned algorithms)
    run(x)      records, replays
    run(x)      replays

What holds, without any call by the user: results are as safe to hold as eager's. At a replay whose last results are
still held, another recording is replayed instead (a twin, made for large results), or the held ones get memory of
their own. Arguments that stand where they stood are used in place: parameters, buffers, results of other graphs (what
forward saved for backward); others are copied in. Each layout of the arguments has recordings of its own.

Plainly run: calls on other threads than the first one's, calls into a capture of the user's own, layouts beyond the
limits below, and after a recording has failed everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Protocol, final

import torch
from torch import nn

from kiln.native._executor import is_lent
from kiln.runtime.cuda_graphs.device import GraphDevice, RecordingFailed
from kiln.runtime.cuda_graphs.exports import watch_exports
from kiln.runtime.cuda_graphs.recording import FITS, HELD, MOVED, Function, Recordable, Recording, span_bytes

KEPT = 8
"""Recordings of one plan at a time; the one used longest ago goes first."""

POOL_SHARE = 0.5
"""Of the device's memory: the pools of one plan's recordings take no more, unless there is but one."""

ATTEMPTS = 32
"""Recordings of one plan in all: then those that exist are used, other calls run plainly."""

LAYOUTS = 64
"""Layouts of arguments that came once: with more, nothing new is recorded."""

TWINS = 2
"""Recordings for the same layout whose results are held by turns."""

TWIN_BYTES = 64 << 20
"""Held results from this size on are left where they are, and another recording is made, if its pool is at most
`TWIN_SHARE` times as large: copying them would take over 30 us on an H200 in each call."""
TWIN_SHARE = 4

COPY_BYTES = 256 << 20
"""Arguments that are not always at the same place are copied up to this size in all; beyond, calls run plainly."""

MOVES = 2
"""So often a recording is made for a parameter, or a result of another graph, that stands elsewhere; then it is copied.
"""

STRIKES = 16
"""Calls of one layout with too much to copy before the plan is not recorded any more."""

Layout = tuple[object, ...]


class GraphLog(Protocol):
    """What is told of recordings."""

    def recorded(self, name: str, pool_bytes: int) -> None: ...

    def dropped(self, name: str, pool_bytes: int) -> None: ...

    def refused(self, name: str, reason: str) -> None: ...


@final
@dataclass
class Sighting:
    """Arguments of a layout that has not been recorded yet: where they stood first, how often they came."""

    addresses: tuple[int, ...]
    count: int = 1


class GraphedPlan:
    """Callable that runs a plan by replaying graphs of it where that is right."""

    def __init__(self, plain: Function, what: Recordable, device: GraphDevice, log: GraphLog) -> None:
        self.plain = plain
        self.what = what
        self.device = device
        self.log = log
        self.recordings: list[Recording] = []
        self.sightings: dict[Layout, Sighting] = {}
        self.attempts = 0
        self.calls = 0
        self.stopped = ""
        """Why nothing more is recorded."""
        self._thread = 0
        self._shared = False
        self._moves: Counter[int] = Counter()

    def __call__(self, *args: object) -> object:
        if self._thread != get_ident() and not self._claim():
            return self.plain(*args)
        if self.device.is_recording():
            return self.plain(*args)
        self.calls += 1
        held, moved = [], []
        for recording in self.recordings:
            verdict = recording.state.check(args)
            if verdict == FITS:
                recording.used = self.calls
                return recording.run(args)
            if verdict == HELD:
                held.append(recording)
            elif verdict == MOVED:
                moved.append(recording)
        if held:
            return self._with_held(held, args)
        if self.stopped:
            return self.plain(*args)
        return self._with_moved(moved, args) if moved else self._unseen(args)

    def _claim(self) -> bool:
        """The first thread that calls has the recordings: between threads, nothing says when results are read."""
        if self._thread == 0:
            self._thread = get_ident()
            return True
        if not self._shared:
            self._shared = True
            self.log.refused(self.what.facts.name, "it is called on several threads: only the first has graphs")
        return False

    def clear(self) -> None:
        """Drop all recordings and begin again."""
        for recording in self.recordings:
            self.log.dropped(self.what.facts.name, recording.graph.bytes)
        self.recordings, self.sightings = [], {}
        self.attempts, self._thread, self._shared = 0, 0, False
        self._moves.clear()
        self.stopped = ""

    # ------------------------------------------------------------------------------------- calls that nothing fits

    def _with_held(self, held: list[Recording], args: tuple[object, ...]) -> object:
        """The caller holds results of every recording that fits.

        An argument may be what is saved. It is no argument in place: those stood before the graph's memory was made.
        """
        oldest = held[0] if len(held) == 1 else min(held, key=lambda recording: recording.used)
        held_bytes, pool_bytes = oldest.state.held_bytes(), oldest.graph.bytes
        if held_bytes >= TWIN_BYTES and pool_bytes <= TWIN_SHARE * held_bytes and self._has_room(pool_bytes):
            twin = self._record(args, oldest.copied) if len(held) < TWINS and not self.stopped else None
            if twin is not None:
                return twin.run(args)
        oldest.save_held()
        oldest.used = self.calls
        return oldest.run(args)

    def _with_moved(self, moved: list[Recording], args: tuple[object, ...]) -> object:
        """The layout is known, and arguments stand elsewhere than in all its recordings."""
        nearest = min(moved, key=lambda recording: len(recording.state.moved(args)))
        places = nearest.state.moved(args)
        again = [place for place in places if self._moves[place] < MOVES]
        stale = {place for place in again if isinstance(args[place], nn.Parameter)}
        lent = {place for place in again if is_lent(args[place])}
        elsewhere = set(places) - stale - lent
        copied = nearest.copied | elsewhere
        if not self._may_copy(args, copied):
            return self.plain(*args)
        made = self._record(args, copied)
        if made is None:
            return self.plain(*args)
        self._moves.update(again)
        if stale or elsewhere:  # the new one serves all calls that the old one does, or the old one serves none
            self._drop(nearest)
        return made.run(args)

    def _unseen(self, args: tuple[object, ...]) -> object:
        """A layout without a recording: recorded when it comes the second time."""
        layout = layout_of(args)
        sighting = self.sightings.get(layout)
        if sighting is None:
            if len(self.sightings) < LAYOUTS:
                self.sightings[layout] = Sighting(addresses_of(args))
            else:
                self._stop("sizes or numbers among its arguments keep changing")
            return self.plain(*args)
        same = (first == now for first, now in zip(sighting.addresses, addresses_of(args), strict=True))
        copied = {
            place
            for place, (arg, steady) in enumerate(zip(args, same, strict=True))
            if isinstance(arg, torch.Tensor) and not (steady or isinstance(arg, nn.Parameter) or is_lent(arg))
        }
        if not self._may_copy(args, copied):
            sighting.count += 1
            if sighting.count > STRIKES and not self.recordings:
                self._stop("arguments that change their place are too large to copy")
            return self.plain(*args)
        made = self._record(args, copied)
        if made is None:
            return self.plain(*args)
        del self.sightings[layout]
        return made.run(args)

    # ----------------------------------------------------------------------------------------------------- recording

    def _may_copy(self, args: tuple[Any, ...], places: Iterable[int]) -> bool:
        return sum(span_bytes(args[place]) for place in places) <= COPY_BYTES

    def _record(self, args: tuple[object, ...], copied: Collection[int]) -> Recording | None:
        """A new recording, kept; None where there will be none."""
        if self.attempts >= ATTEMPTS:
            self._stop(f"{ATTEMPTS} recordings were made for changing arguments")
            return None
        self.attempts += 1
        watch_exports()
        try:
            made = Recording.make(self.what, self.device, args, copied)
        except (RecordingFailed, torch.cuda.OutOfMemoryError) as problem:
            self._stop(problem.reason if isinstance(problem, RecordingFailed) else "no memory for its arguments")
            return None
        while self.recordings and (len(self.recordings) >= KEPT or not self._has_room(made.graph.bytes)):
            self._drop(min(self.recordings, key=lambda recording: recording.used))
        made.used = self.calls
        self.recordings.append(made)
        self.log.recorded(self.what.facts.name, made.graph.bytes)
        return made

    def _has_room(self, pool_bytes: int) -> bool:
        """For one pool more."""
        return (
            sum(recording.graph.bytes for recording in self.recordings) + pool_bytes <= POOL_SHARE * self.device.memory
        )

    def _drop(self, recording: Recording) -> None:
        if recording in self.recordings:
            self.recordings.remove(recording)
            self.log.dropped(self.what.facts.name, recording.graph.bytes)

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self.log.refused(self.what.facts.name, reason)


def layout_of(args: tuple[object, ...]) -> Layout:
    return tuple(
        (arg.dtype, tuple(arg.shape), arg.stride()) if isinstance(arg, torch.Tensor) else (type(arg), arg)
        for arg in args
    )


def addresses_of(args: tuple[object, ...]) -> tuple[int, ...]:
    return tuple(arg.data_ptr() if isinstance(arg, torch.Tensor) else 0 for arg in args)
