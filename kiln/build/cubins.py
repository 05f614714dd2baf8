"""Compiles Triton kernels to cubins, which the native executor loads.

    started = start_cubins(kernels, store, events)     # other processes compile
    cubins = started.wait()                            # symbol -> Cubin

The store keeps cubins with all that a launch needs, so a warm start does not import Triton. The key consists of the
code, `meta` (with the compute capability) and Triton's version. Kernels with equal code share a cubin, whose function
has the symbol of the first.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import field
from functools import lru_cache, partial
from importlib import metadata
from typing import Any

import torch

from kiln.build.limits import CompileLimits
from kiln.build.triton_compile import compile_source
from kiln.build.triton_queue import shared_queue
from kiln.build.triton_workers import can_start_workers, shared_workers
from kiln.plan.plan import Kernel
from kiln.runtime.cache.store import DiskStore, content_key
from kiln.runtime.kernels import Cubin
from kiln.support.errors import KilnError
from kiln.support.events import EventSink
from kiln.support.optional import MissingPackage
from kiln.support.records import dataclass

Compiler = Callable[[str, str, Mapping[str, Any]], dict[str, Any]]
"""`compile_source`, in this process or in a worker."""
KIND = "cubin"
MOST_WORKERS = 16
FIRST_WORKERS = 8
"""A worker takes 150 MB and half a second to start; a small model has that many kernels."""
LETTERS: Mapping[str, str] = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "fp16": "e", "bf16": "g", "fp32": "f", "fp64": "d",
}  # fmt: skip
"""Triton's types of parameters as `ParameterType` of csrc/executor/device.h; pointers are "p"."""


class NoTriton(KilnError):
    code = "KILN4104"
    what = "there is no Triton to compile {count} kernels with"
    why = "the package `triton` cannot be imported, and the cache does not have the kernels"
    try_ = ("install the triton that belongs to this torch", "ship a bundle that was compiled for this kind of GPU")


class TritonRefused(KilnError):
    code = "KILN4105"
    what = "Triton did not compile kernel {symbol}"
    why = "{message}"
    try_ = ("report the kernel source, which KILN_DUMP=folder writes",)


@dataclass
class CubinCompilation:
    """Cubins being compiled. `wait` may be called more than once; `stop` cancels what is not compiled yet."""

    events: EventSink
    cubins: dict[str, Cubin]
    running: dict[str, Future[Cubin]] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        weakref.finalize(self, drop_all, self.running)

    def wait(self) -> dict[str, Cubin]:
        """All cubins by symbol. Raises NoTriton, TritonRefused."""
        cached, compiled = len(self.cubins), len(self.running)
        try:
            for symbol, future in list(self.running.items()):
                self.cubins[symbol] = self.result(symbol, future)
        finally:
            self.stop()
        if compiled:
            seconds = time.perf_counter() - self.started
            self.events.emit("compiled_cubins", compiled=compiled, cached=cached, seconds=seconds)
        return self.cubins

    def result(self, symbol: str, future: Future[Cubin]) -> Cubin:
        try:
            return future.result()
        except MissingPackage as error:
            raise NoTriton(count=len(self.running)) from error
        except KilnError:
            raise
        except Exception as error:  # whatever Triton, LLVM or ptxas raise
            raise TritonRefused(symbol=symbol, message=f"{type(error).__name__}: {error}") from error

    def stop(self) -> None:
        drop_all(self.running)


def drop_all(running: dict[str, Future[Cubin]]) -> None:
    """Cancel compilations that no other caller waits for."""
    while running:
        shared_queue().drop(running.popitem()[1])


def start_cubins(
    kernels: Sequence[Kernel],
    store: DiskStore,
    events: EventSink,
    workers: int = 0,
    limits: CompileLimits = CompileLimits(),
) -> CubinCompilation:
    """Look the Triton kernels up and start compiling the missing ones; `workers` 0: one per core, 1: this process."""
    distinct = {kernel.symbol: kernel for kernel in kernels if kernel.language == "triton"}
    keys = {symbol: cubin_key(kernel) for symbol, kernel in distinct.items()}
    stored = {symbol: store.get(KIND, key) for symbol, key in keys.items()}
    known = {symbol: Cubin.decode(data) for symbol, data in stored.items() if data is not None}
    work = CubinCompilation(events, known)
    missing = [kernel for symbol, kernel in distinct.items() if symbol not in known]
    if missing:
        count = min(len(missing), workers or os.cpu_count() or 1, MOST_WORKERS)
        here = workers == 1 or not can_start_workers()
        compiler: Compiler = compile_source if here else partial(shared_workers().compile, limits=limits)
        for kernel in sorted(missing, key=lambda kernel: (-len(kernel.source), kernel.symbol)):
            key = keys[kernel.symbol]
            call = partial(compile_and_keep, kernel, store, key, compiler)
            work.running[kernel.symbol] = shared_queue().submit(f"{store.folder} {key}", call, count)
    return work


def compiles_elsewhere(workers: int = 0) -> bool:
    """Do other processes compile the cubins? `workers` as in `start_cubins`."""
    return workers != 1 and can_start_workers() and bool(triton_version())


def prepare_compiling(workers: int = 0) -> None:
    """Start workers before the first kernel is known, if this process uses a GPU; returns at once."""
    if not torch.cuda.is_initialized() or not compiles_elsewhere(workers):
        return
    count = min(workers or (os.cpu_count() or 1), FIRST_WORKERS)
    threading.Thread(target=shared_workers().start, args=(count,), daemon=True).start()


def compile_and_keep(kernel: Kernel, store: DiskStore, key: str, compiler: Compiler) -> Cubin:
    meta = dict(kernel.meta)
    made = compiler(kernel.source, kernel.symbol, meta)
    code = made.pop("cubin")
    facts = {"letters": parameter_letters(kernel), "status": meta["status"], "capability": meta["capability"]}
    cubin = Cubin(**made, **facts, code=code)
    store.put(KIND, key, cubin.encode())
    return cubin


def parameter_letters(kernel: Kernel) -> str:
    """One letter per parameter. Raises TritonRefused for a type that cannot be passed."""
    letters = []
    for kind in dict(kernel.meta)["signature"]:
        letter = "p" if kind.startswith("*") else LETTERS.get(kind)
        if letter is None:
            raise TritonRefused(symbol=kernel.symbol, message=f"no parameter can have the type {kind}")
        letters.append(letter)
    return "".join(letters)


def cubin_key(kernel: Kernel) -> str:
    """From the code alone: kernels that differ only in sizes their code does not mention are compiled once."""
    meta: Any = json.dumps(kernel.meta, sort_keys=True)
    return content_key(code_of(kernel), meta, triton_version())


def code_of(kernel: Kernel) -> str:
    """The source without its head comment (the kernel IR) and without the kernel's name."""
    lines = [line for line in kernel.source.splitlines() if not line.startswith("#")]
    return re.sub(rf"\b{re.escape(kernel.symbol)}\b", "kernel", "\n".join(lines))


@lru_cache(maxsize=1)
def triton_version() -> str:
    """The installed version, found without importing it; empty if it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""
