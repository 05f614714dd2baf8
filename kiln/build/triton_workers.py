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
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedRWPair
from pathlib import Path
from typing import Any, final

from kiln.build.triton_compile import PURPOSE, compile_source
from kiln.build.triton_worker import CONTROL, STARTER
from kiln.support.optional import MissingPackage

HIDDEN = ("TRITON_INTERPRET", "TRITON_CACHE_DIR")
"""Variables of the environment that must not reach a worker."""


class WorkerError(RuntimeError):
    """What went wrong in a worker, in its words."""


@final
@dataclass
class Worker:
    """A process at the other end of a channel; it ends when the channel does."""

    channel: socket.socket
    stream: BufferedRWPair

    def ask(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Raises OSError and ValueError where the process has ended."""
        self.stream.write(json.dumps(request).encode() + b"\n")
        self.stream.flush()
        head: dict[str, Any] = json.loads(self.stream.readline())
        cubin = self.stream.read(head.get("size", 0))
        return head, cubin

    def is_alive(self) -> bool:
        """Of an idle one, which has nothing to say."""
        try:
            self.channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def stop(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written is lost
            self.stream.close()
        self.channel.close()


@final
@dataclass
class ForkServer:
    """The process whose forks the workers are. It takes half a second to be ready; who asks before that waits."""

    process: subprocess.Popen[bytes]
    control: socket.socket

    @staticmethod
    def start() -> ForkServer:
        """Raises OSError where no process can be started."""
        path = [str(Path(__file__).parents[2]), *(one for one in sys.path if one)]
        environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        command = [sys.executable, "-c", STARTER.format(path=path, function="main", at=CONTROL)]
        ours, theirs = socket.socketpair()
        nowhere = subprocess.DEVNULL
        with theirs:
            # A session of its own: the terminal's Ctrl-C is for the program; the server ends when its input does.
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=nowhere, stderr=nowhere, env=environment, start_new_session=True
            )
        return ForkServer(process, ours)

    def fork(self) -> Worker:
        """Raises OSError where the server has ended."""
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
    """The idle ones; those at work belong to the thread that waits for them."""

    owner: int = field(default_factory=os.getpid)
    idle: list[Worker] = field(default_factory=list)
    server: ForkServer | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, count: int) -> None:
        """At least `count` idle workers, if they can be started."""
        with self.lock, contextlib.suppress(OSError):
            self.idle = [one for one in self.idle if one.is_alive()]
            while len(self.idle) < count:
                self.idle.append(self.fresh())

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
            if self.owner != os.getpid():  # a fork shares its parent's channels
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
            self.server.stop()  # it has ended for want of work
        self.server = None
        self.server = ForkServer.start()
        return self.server.fork()

    def stop(self) -> None:
        """End the idle ones, and what they are forked from; in a fork of this process, leave them to it."""
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
    """Is there a Python to start? Not in a program that embeds one."""
    return bool(sys.executable) and Path(sys.executable).name.startswith("python")
