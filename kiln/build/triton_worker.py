"""The processes that compile Triton kernels: a server that has imported Triton, and workers forked from it.

    control:  one byte and one end of a channel for each worker to start
    channel:  one line of JSON per kernel {"source", "symbol", "meta", "megabytes"}
              back: a line {"group"}, which to kill after the time limit; a line {"size", ...facts}, then `size` bytes
              of cubin; or {"error", "missing"}

Processes, because Triton holds the interpreter lock for 40% of its time. Importing it and compiling a first kernel
takes 0.6 s of CPU time, forking a few milliseconds. No `multiprocessing`: its children import the program's main
module. No process imports torch. All end when their sockets close, or after some time without work.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from io import BufferedRWPair
from typing import Any

from kiln.build.triton_compile import compile_source
from kiln.support.optional import MissingPackage

IDLE_SECONDS = 60.0  # after so long without a request, the server and a worker end
STARTER = "import sys; sys.path[:] = {path!r}; from kiln.build.triton_worker import {function}; {function}({at})"
"""A program for `python -c`."""
CONTROL = 0
"""The file descriptor at which the server finds its control socket."""
WARM_UP = """
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def warm_up(x, y, BLOCK: tl.constexpr):
    i0 = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v0 = libdevice.exp(tl.load(x + i0, mask=i0 < 100, other=0.0))
    total = tl.sum(v0, 0)
    for i1 in range(4):
        tl.store(y + i0 + i1, v0 / total, mask=i0 < 100)
"""
WARM_META = {"capability": 90, "constants": (("BLOCK", 128),), "num_warps": 1, "signature": ("*fp32", "*fp32")}
"""A kernel with what most kernels have: functions of libdevice, a reduction, a loop, masks."""


def main(at: int) -> None:
    """The server, with its control socket at descriptor `at`."""
    control = socket.socket(fileno=os.dup(at))
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, at)  # processes that Triton starts must not inherit the socket
    with suppress(Exception):  # the first kernel raises it again
        compile_source(WARM_UP, "warm_up", WARM_META)
    gc.collect()
    gc.freeze()  # so that collections in forks do not write to, and thereby copy, shared pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while select.select([control], [], [], IDLE_SECONDS)[0]:
        if not start_worker(control):
            return
    control.shutdown(socket.SHUT_RD)  # new requests fail from here on; earlier ones are served
    while start_worker(control):
        pass


def start_worker(control: socket.socket) -> bool:
    """A worker for the next channel; False where there is none."""
    _, channels, _, _ = socket.recv_fds(control, 1, 1)
    has_threads = len(os.listdir("/proc/self/task")) > 1
    for channel in channels:
        if os.fork() == 0:
            control.close()
            become_worker(channel, has_threads)
        os.close(channel)
    return bool(channels)


def become_worker(channel: int, has_threads: bool) -> None:
    """Turn this fork of the server into a worker, which never returns; if the server has threads, by `exec`."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # so that it can be ended with what it starts
        if has_threads:  # a lock that one of them holds would never be released here
            os.set_inheritable(channel, True)
            program = STARTER.format(path=sys.path, function="work", at=channel)
            os.execv(sys.executable, [sys.executable, "-c", program])
        work(channel)
    finally:
        os._exit(0)


def work(at: int) -> None:
    """A worker, with its channel at descriptor `at`."""
    with (
        socket.socket(fileno=at) as channel,
        channel.makefile("rwb") as stream,
        tempfile.TemporaryDirectory(prefix="kiln-triton-") as folder,
    ):
        os.environ["TRITON_CACHE_DIR"] = folder
        with suppress(BrokenPipeError):
            serve(channel, stream)


def serve(channel: socket.socket, stream: BufferedRWPair) -> None:
    while select.select([channel], [], [], IDLE_SECONDS)[0]:
        line = stream.readline()
        if not line:
            return
        request = json.loads(line)
        stream.write(json.dumps({"group": os.getpgrp()}).encode() + b"\n")
        stream.flush()
        limit_memory(request["megabytes"])
        head, cubin = answer(request)
        stream.write(json.dumps(head).encode() + b"\n" + cubin)
        stream.flush()


def limit_memory(megabytes: int) -> None:
    """Of this process and what it starts; 0: no limit."""
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # above a limit of the machine's
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20 if megabytes else hardest, hardest))


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The facts of `compile_source` and the cubin, or the error and nothing."""
    try:
        made = compile_source(request["source"], request["symbol"], request["meta"])
    except MissingPackage as error:
        return {"error": str(error), "missing": True}, b""
    except Exception as error:  # whatever Triton, LLVM or ptxas raise
        return {"error": f"{type(error).__name__}: {error}", "missing": False}, b""
    cubin: bytes = made.pop("cubin")
    return {**made, "size": len(cubin)}, cubin
