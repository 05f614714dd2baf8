"""Processes that compile Triton kernels, kept while there is work for them.

    workers = shared_workers()
    workers.start(4)                                     # ahead of the first kernel, if one knows that it will come
    workers.compile(source, symbol, meta)                # as `compile_source`, from any thread

Each call takes a worker that is idle, or starts one. Measured on kernels with a call of libdevice: of 0.25 s, Triton
holds the interpreter lock for 0.1 s (reading libdevice, walking the source), so threads give 2.5 times at most.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, final

from kiln.runtime.triton_compile import PURPOSE, compile_source
from kiln.support.optional import MissingPackage

STARTER = "import sys; sys.path[:] = {path!r}; from kiln.runtime.triton_worker import main; main()"
HIDDEN = ("TRITON_INTERPRET", "TRITON_CACHE_DIR")
"""Variables of the environment that must not reach a worker."""


class WorkerError(RuntimeError):
    """What went wrong in a worker, in its words."""


@final
@dataclass
class Worker:
    """One process."""

    process: subprocess.Popen[bytes]

    @staticmethod
    def start() -> Worker:
        path = [str(Path(__file__).parents[2]), *(one for one in sys.path if one)]
        environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        command = [sys.executable, "-c", STARTER.format(path=path)]
        pipe = subprocess.PIPE
        # A session of its own: the terminal's Ctrl-C is for the program; the worker ends when its input does.
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        return Worker(process)

    def ask(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Raises OSError and ValueError where the process has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        head: dict[str, Any] = json.loads(self.process.stdout.readline())
        cubin = self.process.stdout.read(head.get("size", 0))
        return head, cubin

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@final
@dataclass
class Workers:
    """The idle ones; those at work belong to the thread that waits for them."""

    owner: int = field(default_factory=os.getpid)
    idle: list[Worker] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, count: int) -> None:
        """At least `count` idle workers, if they can be started. They take about half a second to be ready."""
        with self.lock, contextlib.suppress(OSError):
            self.idle = [one for one in self.idle if one.is_alive()]
            while len(self.idle) < count:
                self.idle.append(Worker.start())

    def compile(self, source: str, symbol: str, meta: Mapping[str, Any]) -> dict[str, Any]:
        """As `compile_source`; in this process where none can be started. Raises MissingPackage, WorkerError."""
        request = {"source": source, "symbol": symbol, "meta": dict(meta)}
        try:
            head, cubin = self.answer(request)
        except OSError:
            return compile_source(source, symbol, meta)
        if "error" in head:
            if head["missing"]:
                raise MissingPackage(package="triton", purpose=PURPOSE)
            raise WorkerError(head["error"])
        head.pop("size")
        return {**head, "cubin": cubin}

    def answer(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """That of an idle worker, which may have ended for want of work, or else of a fresh one.

        Raises WorkerError, OSError where no process can be started.
        """
        while True:
            worker, fresh = self.take()
            try:
                found = worker.ask(request)
            except (OSError, ValueError) as error:
                worker.stop()
                if fresh:
                    raise WorkerError("the process that compiles Triton kernels has ended") from error
                continue
            with self.lock:
                self.idle.append(worker)
            return found

    def take(self) -> tuple[Worker, bool]:
        with self.lock:
            if self.owner != os.getpid():  # a fork shares its parent's pipes
                self.owner, self.idle = os.getpid(), []
            while self.idle:
                worker = self.idle.pop()
                if worker.is_alive():
                    return worker, False
        return Worker.start(), True

    def stop(self) -> None:
        """End the idle ones."""
        with self.lock:
            for worker in self.idle:
                worker.stop()
            self.idle = []


@lru_cache(maxsize=1)
def shared_workers() -> Workers:
    made = Workers()
    atexit.register(made.stop)
    return made


def can_start_workers() -> bool:
    """Is there a Python to start? Not in a program that embeds one."""
    return bool(sys.executable) and Path(sys.executable).name.startswith("python")
