"""How long a session may compile: no longer than it can pay off.

    60 s                                                      (the option `compile_budget`)
    and 10 s more for each second that the program runs,      in its first 30 s after the first compile
    and 0.1 s more for each second,                           from then on

A compile that reaches the limit is given up: the call runs eager. A later call tries again once there is time for twice
as much. So a program that runs on is compiled in the end, and one that compiles in every call becomes at most a tenth
slower than eager.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from kiln.support.errors import KilnError

EARLY, LATER = 10.0, 0.1
SETTLING = 30.0
"""Seconds of compiling for each second that the program has run, in its first SETTLING seconds and then."""
LOOKS = 16
"""`check` looks at the clock once in so many calls."""


class CompileBudgetSpent(KilnError):
    code = "KILN1093"
    what = "`{name}` runs eager for now: it has been compiled for {spent:.0f} s"
    why = "meanwhile the program ran for {ran:.0f} s, so that more compiling would not pay off yet"
    try_ = (
        "read in the report what is compiled again, and where the graph breaks",
        "allow more: options={{'compile_budget': {more}}}",
    )


@final
class CompileBudget:
    """`seconds` are free; 0: no limit. `clock` counts seconds. Threads may share it."""

    def __init__(self, name: str, seconds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        """How many compiles run now: a function in one thread, a backward in another."""
        self._busy = 0.0
        """Seconds in which some compile ran, up to `_since` while one runs."""
        self._since = 0.0
        self._first: float | None = None
        """When the first compile began."""
        self._deadline = float("inf")
        self._thread = 0
        """The one whose compile ends at the deadline."""
        self._wanted = 0.0
        """Seconds that must be left before a compile starts: twice what the one took that was given up."""
        self._told = False
        """Whether `news` has said since the last compile that the time is spent."""
        self._looks = 0

    @property
    def left(self) -> float:
        """Seconds that may be compiled now."""
        with self._lock:
            return self._left(self._clock())

    def _left(self, now: float) -> float:
        spent, ran = self._shares(now)
        return self.seconds + EARLY * min(ran, SETTLING) + LATER * max(ran - SETTLING, 0.0) - spent

    def _shares(self, now: float) -> tuple[float, float]:
        """Seconds since the first compile in which one ran, and in which none did."""
        spent = self._busy + (now - self._since if self._running else 0.0)
        return spent, 0.0 if self._first is None else max(0.0, now - self._first - spent)

    def is_spent(self) -> bool:
        """Whether a compile must not start now."""
        return self.seconds > 0 and self.left <= self._wanted

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A compile that counts and is not given up."""
        with self._lock:
            now = self._clock()
            self._first = now if self._first is None else self._first
            if not self._running:
                self._since = now
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._busy += self._clock() - self._since

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """A compile, which `check` ends at the limit. Only one runs at a time, but it may start another."""
        outer = self._deadline, self._thread
        with self.counting():
            start = self._clock()
            self._deadline = start + self.left if self.seconds else float("inf")
            self._thread, self._told = threading.get_ident(), False
            try:
                yield
                self._wanted = 0.0
            except CompileBudgetSpent:
                self._wanted = 2 * (self._clock() - start)
                raise
            finally:
                self._deadline, self._thread = outer

    def check(self) -> None:
        """Raise CompileBudgetSpent once the compile that this thread runs has reached the limit."""
        self._looks += 1
        if self._looks % LOOKS:
            return
        if self._clock() > self._deadline and threading.get_ident() == self._thread:
            raise self.problem()

    def news(self) -> CompileBudgetSpent | None:
        """Why the program runs eager for now, unless that was said since the last compile."""
        told, self._told = self._told, True
        return None if told else self.problem()

    def problem(self) -> CompileBudgetSpent:
        """Why the program runs eager for now."""
        with self._lock:
            spent, ran = self._shares(self._clock())
        return CompileBudgetSpent(name=self.name, spent=spent, ran=ran, more=2 * max(self.seconds, int(spent)))
