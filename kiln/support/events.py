"""Events: what every stage reports to a recorder that is always on.

A stage never prints. It emits events to the sink it was handed; the flight recorder keeps the last
ones, the report counts them, `KILN_LOG` prints them, a progress bar follows them.

    with events.stage("lowering"):
        events.emit("kernel", name="add_norm", bytes=4096)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. Of a finished stage: `seconds` of wall time, and what of it no inner stage took."""

    kind: str
    stage: str
    time: float
    data: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    own_seconds: float = 0.0


Listener = Callable[[Event], None]


class EventSink:
    """Keeps the last `capacity` events and hands each to the listeners."""

    def __init__(self, capacity: int = 4096) -> None:
        self.events: deque[Event] = deque(maxlen=capacity)
        self._listeners: tuple[Listener, ...] = ()
        self._stages: list[str] = []
        self._inner: list[float] = [0.0]
        self.failed_stage = ""
        """The innermost stage that an exception left last."""

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every later event; the result stops it."""
        self._listeners += (listener,)

        def stop() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return stop

    def emit(self, kind: str, **data: object) -> None:
        """Record an event of the current stage."""
        self._record(Event(kind, self._stages[-1] if self._stages else "", time.time(), data))

    @contextmanager
    def stage(self, name: str, **data: object) -> Iterator[None]:
        """Everything emitted inside belongs to stage `name`; its wall time is recorded at the end."""
        start = time.perf_counter()
        self._stages.append(name)
        self._inner.append(0.0)
        self.failed_stage = ""
        try:
            yield
        except BaseException:
            self.failed_stage = self.failed_stage or name
            raise
        finally:
            self._stages.pop()
            seconds = time.perf_counter() - start
            own = seconds - self._inner.pop()
            self._inner[-1] += seconds
            self._record(Event("stage", name, time.time(), data, seconds, own))

    def _record(self, event: Event) -> None:
        self.events.append(event)
        for listener in self._listeners:
            listener(event)
