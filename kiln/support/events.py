"""Events: what every stage reports; stages never print.

The sink keeps the last events as a flight recorder; the report counts them, `KILN_LOG` prints them, a progress bar
follows them.

    with events.stage("lowering"):
        events.emit("kernel", name="add_norm", bytes=4096)
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import final

from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. A finished stage has `seconds` of wall time, `own_seconds` without inner stages."""

    kind: str
    stage: str
    time: float
    data: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    own_seconds: float = 0.0


Listener = Callable[[Event], None]


@final
class _Stages(threading.local):
    """The stages that a thread is in, and the wall time of their inner stages."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.inner: list[float] = [0.0]
        self.failed = ""


class EventSink:
    """Keeps the last `capacity` events and passes each to the listeners.

    Threads may share it (a backward is compiled in the thread that first runs it); each has its own stages.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self.events: deque[Event] = deque(maxlen=capacity)
        self._listeners: tuple[Listener, ...] = ()
        self._stages = _Stages()
        self._lock = threading.RLock()

    @property
    def failed_stage(self) -> str:
        """The innermost stage that the last exception of this thread left."""
        return self._stages.failed

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every later event, until the returned function is called."""
        with self._lock:
            self._listeners += (listener,)

        def stop() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)

        return stop

    def emit(self, kind: str, **data: object) -> None:
        """Record an event of the current stage."""
        names = self._stages.names
        self.record(Event(kind, names[-1] if names else "", time.time(), data))

    @contextmanager
    def stage(self, name: str, **data: object) -> Iterator[None]:
        """Everything emitted inside belongs to stage `name`; a "begin" event precedes it, a "stage" event ends it."""
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
        """Record an event, possibly of another sink."""
        with self._lock:
            self.events.append(event)
            for listener in self._listeners:
                listener(event)
