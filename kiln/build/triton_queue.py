"""A first-in, first-out queue of compilations, one per process.

    future = shared_queue().submit("k_ab12", call, threads=16)     # starts a thread while fewer are running
    future.result()
    shared_queue().drop(future)                                    # cancels the call if no one else waits for it

Calls with equal keys run once: forward and backward share kernels. Unlike those of a `ThreadPoolExecutor`, the threads
are daemons: a program that ends does not wait for kernels that it does not need any more.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import field
from functools import lru_cache
from typing import Any, final

from kiln.support.records import dataclass


@final
@dataclass(eq=False)
class Job:
    """A call and the number of callers that wait for it."""

    key: str
    call: Callable[[], object]
    future: Future[object] = field(default_factory=Future)
    waiting: int = 1


@final
@dataclass
class CompileQueue:
    """See above. A fork of the process starts with an empty queue, since it has none of the threads."""

    owner: int = field(default_factory=os.getpid)
    jobs: deque[Job] = field(default_factory=deque)
    known: dict[str, Job] = field(default_factory=dict)
    threads: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)  # reentrant: garbage collection may call `drop`

    def submit(self, key: str, call: Callable[[], object], threads: int) -> Future[Any]:
        """The future of `call`, or of the unfinished one with the same key."""
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
        """The caller no longer waits for the future."""
        with self.lock:
            job = next((job for job in self.known.values() if job.future is future), None)
            if job is None:
                return
            job.waiting -= 1
            if job.waiting == 0 and future.cancel():
                del self.known[job.key]

    def next(self) -> Job | None:
        """The next call; None ends the calling thread."""
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
            except BaseException as problem:  # raised by `result`
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
