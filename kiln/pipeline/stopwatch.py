"""Times of work: by the clock of the host, or on a GPU by events in the stream, which nobody waits for.

    start = stopwatch.mark()
    ...
    seconds = stopwatch.seconds(start, stopwatch.mark())      None: the GPU has not come so far

Between two events in one stream lies the time of the GPU where the host runs ahead, and the time of the host where the
GPU waits for it: whichever the program waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

import torch

Clock = Callable[[], float]
Mark = float | torch.cuda.Event


class Stopwatch(Protocol):
    def mark(self) -> Mark:
        """This moment."""

    def seconds(self, start: Mark, end: Mark) -> float | None:
        """Between two marks; None where that is not known yet."""


@final
class HostStopwatch:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def mark(self) -> Mark:
        return self._clock()

    def seconds(self, start: Mark, end: Mark) -> float | None:
        assert isinstance(start, float) and isinstance(end, float)
        return end - start


@final
class StreamStopwatch:
    """Of the current stream of a GPU."""

    def __init__(self, device: str) -> None:
        self._device = device

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: Mark, end: Mark) -> float | None:
        assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
        if not (start.query() and end.query()):
            return None
        milliseconds: float = start.elapsed_time(end)
        return milliseconds / 1000


def stopwatch_of(device: str, clock: Clock) -> Stopwatch:
    return HostStopwatch(clock) if device == "cpu" else StreamStopwatch(device)


@final
class Spans:
    """Stretches of time, added up."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._marks: list[Mark] = []

    def mark(self) -> None:
        """Begin a stretch, or end it."""
        self._marks.append(self._stopwatch.mark())

    def seconds(self) -> float | None:
        """None where it is not known yet."""
        pairs = zip(self._marks[::2], self._marks[1::2], strict=False)
        found = [self._stopwatch.seconds(start, end) for start, end in pairs]
        known = [seconds for seconds in found if seconds is not None]
        return sum(known) if len(known) == len(found) else None
