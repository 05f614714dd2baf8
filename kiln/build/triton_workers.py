"""A pool of processes that compile Triton kernels.

    workers = shared_workers()
    workers.start(4)                                     # early, when Triton kernels are expected
    workers.compile(source, symbol, meta)                # like `compile_source`, from any thread

A call takes an idle worker or a new one, forked from a server that has imported Triton (`triton_worker.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from io import BufferedRWPair
from pathlib import Path
from typing import Any, final

from kiln.build.limits import NO_MEMORY, CompileLimits, CompilerOutOfMemory, CompilerTooSlow
from kiln.build.triton_compile import PURPOSE, compile_source
from kiln.build.triton_worker import CONTROL, STARTER
from kiln.support.optional import MissingPackage
from kiln.support.records import dataclass

NOT_INHERITED = ("TRITON_INTERPRET", "TRITON_CACHE_DIR")
"""Environment variables that workers must not inherit."""


class WorkerError(RuntimeError):
    """An error in a worker, with its text."""


@final
@dataclass
class Worker:
    """A process at the other end of a channel; it ends when the channel does."""

    channel: socket.socket
    stream: BufferedRWPair

    def ask(self, request: Mapping[str, Any], timeout: float | None) -> tuple[dict[str, Any], bytes]:
        """Raises TimeoutError after ending the process, and OSError or ValueError if it has ended."""
        self.stream.write(json.dumps(request).encode() + b"\n")
        self.stream.flush()
        self.channel.settimeout(timeout)
        group = 0
        try:
            group = json.loads(self.stream.readline())["group"]
            head: dict[str, Any] = json.loads(self.stream.readline())
            cubin = self.stream.read(head.get("size", 0))
        except TimeoutError:
            if group:
                with contextlib.suppress(OSError):
                    os.killpg(group, signal.SIGKILL)
            raise
        self.channel.settimeout(None)
        return head, cubin

    def is_alive(self) -> bool:
        """For an idle worker: it sends nothing while it lives."""
        try:
            self.channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def stop(self) -> None:
        with contextlib.suppress(OSError):  # unsent data is lost
            self.stream.close()
        self.channel.close()


@final
@dataclass
class ForkServer:
    """The process that forks the workers; ready after half a second, earlier requests wait."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    @staticmethod
    def start() -> ForkServer:
        """Raises OSError if no process can be started."""
        path = [str(Path(__file__).parents[2]), *(path for path in sys.path if path)]
        environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        command = [sys.executable, "-c", STARTER.format(path=path, function="main", at=CONTROL)]
        ours, theirs = socket.socketpair()
        nowhere = subprocess.DEVNULL
        with theirs:
            # Own session: Ctrl-C goes to the program only; the server ends with its input.
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=nowhere, stderr=nowhere, env=environment, start_new_session=True
            )
        return ForkServer(process, ours)

    def fork(self) -> Worker:
        """Raises OSError if the server has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
        return Worker(ours, ours.makefile("rwb"))

    def stop(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.communicate()


@final
@dataclass
class Workers:
    """The idle workers; a busy worker belongs to the thread that waits for it."""

    owner: int = field(default_factory=os.getpid)
    idle: list[Worker] = field(default_factory=list)
    server: ForkServer | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, count: int) -> None:
        """At least `count` idle workers, if they can be started."""
        with self.lock, contextlib.suppress(OSError):
            self.idle = [worker for worker in self.idle if worker.is_alive()]
            while len(self.idle) < count:
                self.idle.append(self.fresh())

    def compile(
        self, source: str, symbol: str, meta: Mapping[str, Any], limits: CompileLimits = CompileLimits()
    ) -> dict[str, Any]:
        """Like `compile_source`; in this process if no worker can be started.

        Raises MissingPackage, WorkerError, CompilerTooSlow, CompilerOutOfMemory.
        """
        request = {"source": source, "symbol": symbol, "meta": dict(meta), "megabytes": limits.megabytes}
        try:
            head, cubin = self.answer(request, limits.timeout())
        except TimeoutError as error:
            work = f"kernel {symbol}"
            raise CompilerTooSlow(compiler="Triton", seconds=limits.seconds, work=work) from error
        except OSError:
            return compile_source(source, symbol, meta)
        if "error" in head:
            if head["missing"]:
                raise MissingPackage(package="triton", purpose=PURPOSE)
            if limits.megabytes and NO_MEMORY.search(head["error"]):
                megabytes, message = limits.megabytes, head["error"][-300:]
                raise CompilerOutOfMemory(compiler="Triton", megabytes=megabytes, work=symbol, message=message)
            raise WorkerError(head["error"])
        head.pop("size")
        return {**head, "cubin": cubin}

    def answer(self, request: Mapping[str, Any], timeout: float | None) -> tuple[dict[str, Any], bytes]:
        """The answer of an idle worker, which may have timed out, or else of a new one.

        Raises WorkerError, TimeoutError, and another OSError if no process can be started.
        """
        while True:
            worker, fresh = self.take()
            try:
                found = worker.ask(request, timeout)
            except TimeoutError:
                worker.stop()
                raise
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
            if self.owner != os.getpid():  # in a fork: the channels are the parent's
                self.owner, self.idle, self.server = os.getpid(), [], None
            while self.idle:
                worker = self.idle.pop()
                if worker.is_alive():
                    return worker, False
            return self.fresh(), True

    def fresh(self) -> Worker:
        """A new worker; the caller holds the lock. Raises OSError."""
        if self.server is not None:
            with contextlib.suppress(OSError):
                return self.server.fork()
            self.server.stop()  # it timed out
        self.server = None
        self.server = ForkServer.start()
        return self.server.fork()

    def stop(self) -> None:
        """End idle workers and the server, but not from a fork of this process."""
        with self.lock:
            if self.owner != os.getpid():
                return
            for worker in self.idle:
                worker.stop()
            if self.server is not None:
                self.server.stop()
            self.idle, self.server = [], None


@lru_cache(maxsize=1)
def shared_workers() -> Workers:
    made = Workers()
    atexit.register(made.stop)
    return made


def can_start_workers() -> bool:
    """Is there a Python executable? Not in programs that embed Python."""
    return bool(sys.executable) and Path(sys.executable).name.startswith("python")
