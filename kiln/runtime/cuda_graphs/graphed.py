"""A plan that is recorded as a CUDA graph at its second call, and replayed from then on.

    run = GraphedPlan(executor, recordable, device, log)
    run(x)      runs without a graph, which also sets up handles and tuned algorithms
    run(x)      records, replays
    run(x)      replays

Results are as safe to hold as eager's: if results of the last replay are still held, they get memory of their own, or
another recording for the same arguments (a twin, made for large results) is replayed. Arguments at unchanged addresses
are used in place (parameters, buffers, results of other graphs, such as tensors saved for backward), others are
copied. Each layout of the arguments has recordings of its own.

No graph serves calls on other threads than that of the first call, calls while the user records, layouts beyond the
limits below, and calls after a recording has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from threading import get_ident
from typing import Any, Protocol, final

import torch
from torch import nn

from kiln.native._executor import is_lent
from kiln.runtime.cuda_graphs.device import GraphDevice, RecordingFailed
from kiln.runtime.cuda_graphs.exports import watch_exports
from kiln.runtime.cuda_graphs.recording import FITS, HELD, MOVED, Function, Recordable, Recording, span_bytes
from kiln.support.records import dataclass

KEPT = 8
"""Recordings of a plan at a time; the least recently used one is dropped first."""

POOL_SHARE = 0.5
"""Share of the device's memory for the pools of a plan's recordings, if there are several."""

ATTEMPTS = 32
"""Recordings of a plan in all; then only existing ones are replayed."""

LAYOUTS = 64
"""Layouts of arguments seen once; with more, nothing new is recorded."""

TWINS = 2
"""Recordings for the same layout, used in turns while results are held."""

TWIN_BYTES = 64 << 20
"""Held results from this size on are not copied, which would take over 30 us on an H200 in each call: another recording
is made, if its pool is at most `TWIN_SHARE` times as large."""
TWIN_SHARE = 4

COPY_BYTES = 256 << 20
"""Arguments whose addresses change are copied, up to this size in all; beyond, calls run without a graph."""

MOST_MOVES = 2
"""Recordings made because a parameter, or a result of another graph, has moved; then it is copied."""

STRIKES = 16
"""Calls of a layout with too much to copy, after which nothing is recorded any more."""

Layout = tuple[object, ...]


class GraphLog(Protocol):
    """Receives what happens to recordings."""

    def recorded(self, name: str, pool_bytes: int) -> None: ...

    def dropped(self, name: str, pool_bytes: int) -> None: ...

    def refused(self, name: str, reason: str) -> None: ...


@final
@dataclass
class Sighting:
    """A layout that has not been recorded yet: addresses of the first arguments, number of calls."""

    addresses: tuple[int, ...]
    count: int = 1


class GraphedPlan:
    """Callable that runs a plan by replaying graphs of it, or plainly: by its executor."""

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
        """Recordings belong to the first calling thread: between threads, the end of a read cannot be known."""
        if self._thread == 0:
            self._thread = get_ident()
            return True
        if not self._shared:
            self._shared = True
            self.log.refused(self.what.facts.name, "it is called on several threads: only the first has graphs")
        return False

    def clear(self) -> None:
        """Drop all recordings and counts."""
        for recording in list(self.recordings):
            self._drop(recording)
        self.sightings = {}
        self.attempts, self._thread, self._shared = 0, 0, False
        self._moves.clear()
        self.stopped = ""

    # ------------------------------------------------------------------------- calls that no free recording fits

    def _with_held(self, held: list[Recording], args: tuple[object, ...]) -> object:
        """The caller holds results of every recording that fits.

        Such a result may be an argument of this call, but of none used in place: those are older than the graph.
        """
        oldest = held[0] if len(held) == 1 else min(held, key=lambda recording: recording.used)
        held_bytes, pool_bytes = sum(map(torch.numel, oldest.state.held())), oldest.graph.bytes
        if held_bytes >= TWIN_BYTES and pool_bytes <= TWIN_SHARE * held_bytes and self._has_room(pool_bytes):
            twin = self._record(args, oldest.copied) if len(held) < TWINS and not self.stopped else None
            if twin is not None:
                return twin.run(args)
        oldest.save_held()
        oldest.used = self.calls
        return oldest.run(args)

    def _with_moved(self, moved: list[Recording], args: tuple[object, ...]) -> object:
        """The layout is known, but arguments have moved since all its recordings."""
        nearest = min(moved, key=lambda recording: len(recording.state.moved(args)))
        positions = nearest.state.moved(args)
        steady = [position for position in positions if self._moves[position] < MOST_MOVES]
        stale = {position for position in steady if isinstance(args[position], nn.Parameter)}
        lent = {position for position in steady if is_lent(args[position])}
        elsewhere = set(positions) - stale - lent
        copied = nearest.copied | elsewhere
        if not self._may_copy(args, copied):
            return self.plain(*args)
        made = self._record(args, copied)
        if made is None:
            return self.plain(*args)
        self._moves.update(steady)
        if stale or elsewhere:  # the old recording fits no call any more, or none that the new one does not fit
            self._drop(nearest)
        return made.run(args)

    def _unseen(self, args: tuple[object, ...]) -> object:
        """A layout without a recording is recorded at its second call."""
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
            position
            for position, (arg, unmoved) in enumerate(zip(args, same, strict=True))
            if isinstance(arg, torch.Tensor) and not (unmoved or isinstance(arg, nn.Parameter) or is_lent(arg))
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

    def _may_copy(self, args: tuple[Any, ...], positions: Iterable[int]) -> bool:
        return sum(span_bytes(args[position]) for position in positions) <= COPY_BYTES

    def _record(self, args: tuple[object, ...], copied: Collection[int]) -> Recording | None:
        """A new recording, which is kept; None if it is refused or fails."""
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
        used = sum(recording.graph.bytes for recording in self.recordings)
        return used + pool_bytes <= POOL_SHARE * self.device.memory

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
