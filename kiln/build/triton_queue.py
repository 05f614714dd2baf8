"""Calls that threads work off in the order in which they came, one queue for the whole process.

    future = shared_queue().submit("k_ab12", call, threads=16)     # at most so many threads at work after that
    future.result()
    shared_queue().drop(future)                                    # a call that nobody wants is not made

The kernels of a forward pass come before those of the backward that may follow it, and a kernel of both is compiled
once. Threads are daemons that end with the work: a program that ends does not wait for kernels that nobody waits for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, final


@final
@dataclass(eq=False)
class Job:
    """A call under way, and how many wait for it."""

    key: str
    call: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    waiting: int = 1


@final
@dataclass
class CompileQueue:
    """See above. A fork of the process has none of its threads, and starts with an empty queue."""

    owner: int = field(default_factory=os.getpid)
    jobs: deque[Job] = field(default_factory=deque)
    known: dict[str, Job] = field(default_factory=dict)
    threads: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)  # what is collected meanwhile may drop a future

    def submit(self, key: str, call: Callable[[], Any], threads: int) -> Future[Any]:
        """The result of `call`, or of an equal one that is under way: `key` says what it makes."""
        with self.lock:
            if self.owner != os.getpid():
                self.owner, self.jobs, self.known, self.threads = os.getpid(), deque(), {}, 0
            job = self.known.get(key)
            if job is not None:
                job.waiting += 1
                return job.future
            job = self.known[key] = Job(key, call)
            self.jobs.append(job)
            if self.threads < threads:
                self.threads += 1
                threading.Thread(target=self.work, name="kiln-triton", daemon=True).start()
            return job.future

    def drop(self, future: Future[Any]) -> None:
        """One waits less for it."""
        with self.lock:
            job = next((one for one in self.known.values() if one.future is future), None)
            if job is None:
                return
            job.waiting -= 1
            if job.waiting == 0 and future.cancel():
                del self.known[job.key]

    def next(self) -> Job | None:
        """The next call; None, and a thread less, where there is none."""
        with self.lock:
            while self.jobs:
                job = self.jobs.popleft()
                if job.future.set_running_or_notify_cancel():
                    return job
            self.threads -= 1
            return None

    def work(self) -> None:
        while (job := self.next()) is not None:
            try:
                made, error = job.call(), None
            except BaseException as problem:  # it belongs to who asks for the result
                made, error = None, problem
            with self.lock:
                del self.known[job.key]
            if error is None:
                job.future.set_result(made)
            else:
                job.future.set_exception(error)


@lru_cache(maxsize=1)
def shared_queue() -> CompileQueue:
    return CompileQueue()
