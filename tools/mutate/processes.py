"""Numbered pieces of work, done by forked processes until all are done or the time is over.

    in_processes(14, len(mutants), make_copy, judge, Deadline(minutes=9))

Each process makes its own place to work in (`start`), then takes the next number that nobody has taken.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from typing import TypeVar, final

Place = TypeVar("Place")


@final
class Deadline:
    def __init__(self, minutes: float) -> None:
        self._end = time.monotonic() + 60.0 * minutes

    def left(self) -> float:
        """Seconds, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def is_over(self) -> bool:
        return self.left() == 0.0


def in_processes(
    processes: int, count: int, start: Callable[[int], Place], do: Callable[[Place, int], None], deadline: Deadline
) -> None:
    """`do(start(process), number)` for each number below `count`. An exception ends its process with a traceback."""
    context = multiprocessing.get_context("fork")
    taken = context.Value("l", 0)

    def work(process: int) -> None:
        try:
            place = start(process)
            while not deadline.is_over():
                with taken.get_lock():
                    number = taken.value
                    taken.value += 1
                if number >= count:
                    return
                do(place, number)
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None

    workers = [context.Process(target=work, args=(process,)) for process in range(min(processes, count))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
