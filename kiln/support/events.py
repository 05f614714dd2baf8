"""Events: what every stage reports to a recorder that is always on.

A stage never prints. It emits events to the sink it was handed; the flight recorder keeps the last
ones, the report counts them, `KILN_LOG` prints them, a progress bar follows them.

    with events.stage("lowering"):
        events.emit("kernel", name="add_norm", bytes=4096)
"""

from __future__ import annotations

import threading
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


@final
class _Stages(threading.local):
    """The stages that a thread is in, and the wall time that their inner stages took."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.inner: list[float] = [0.0]
        self.failed = ""


class EventSink:
    """Keeps the last `capacity` events and hands each to the listeners, one at a time.

    Threads may share it (a backward is compiled where it is first run): each has its own stages.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self.events: deque[Event] = deque(maxlen=capacity)
        self._listeners: tuple[Listener, ...] = ()
        self._stages = _Stages()
        self._lock = threading.RLock()

    @property
    def failed_stage(self) -> str:
        """The innermost stage that an exception left last, in this thread."""
        return self._stages.failed

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every later event; the result stops it."""
        with self._lock:
            self._listeners += (listener,)

        def stop() -> None:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return stop

    def emit(self, kind: str, **data: object) -> None:
        """Record an event of the current stage."""
        names = self._stages.names
        self.record(Event(kind, names[-1] if names else "", time.time(), data))

    @contextmanager
    def stage(self, name: str, **data: object) -> Iterator[None]:
        """Everything emitted inside belongs to stage `name`; "begin" goes before, "stage" with the wall time after."""
        start, stages = time.perf_counter(), self._stages
        stages.names.append(name)
        stages.inner.append(0.0)
        stages.failed = ""
        self.record(Event("begin", name, time.time(), data))
        try:
            yield
        except BaseException:
            stages.failed = stages.failed or name
            raise
        finally:
            stages.names.pop()
            seconds = time.perf_counter() - start
            own = seconds - stages.inner.pop()
            stages.inner[-1] += seconds
            self.record(Event("stage", name, time.time(), data, seconds, own))

    def record(self, event: Event) -> None:
        """Take over an event, of another sink too."""
        with self._lock:
            self.events.append(event)
            for listener in self._listeners:
                listener(event)
