"""Compiles the kernels of a plan: C++ by the compiler of `toolchain.py`, Triton through `cubins.py` at the same time.

    started = start_compile(kernels, store, events)      # g++ runs in the background
    libraries = started.wait()
    libraries.function("k_ab12")                         # a ctypes function

Kernels that are not in the store are divided into as many translation units as there are workers, balanced by source
length, one g++ process each: starting g++ costs more than compiling a small kernel. The store maps each kernel to the
library that contains it, so programs share kernels. Keys include the options below and the compiler's version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import field
from importlib.metadata import version
from pathlib import Path
from typing import final

from kiln.build.cubins import CubinCompilation, start_cubins
from kiln.build.limits import (
    NO_MEMORY,
    CompileLimits,
    CompilerOutOfMemory,
    CompilerTooSlow,
    NoWorkingFolder,
    end_group,
    output_of,
    start_limited,
    working_folder,
)
from kiln.build.toolchain import VERSION_SECONDS, Toolchain, toolchain
from kiln.plan.plan import Kernel
from kiln.runtime.cache.private_folder import reason
from kiln.runtime.cache.store import DiskStore, content_key
from kiln.runtime.kernels import Libraries
from kiln.support.errors import KilnError
from kiln.support.events import EventSink
from kiln.support.records import dataclass

SMALL_UNIT = 2000
"""Characters of source per unit, at least: starting g++ has its cost, too."""


HALIDE_BLOCK = "#if 0  // Halide\n"
HALIDE_UNIT = str(Path(__file__).with_name("halide_unit.py"))
"""Makes objects of the pipelines of Halide in a unit, then becomes the compiler."""


class NoCompiler(KilnError):
    code = "KILN4101"
    what = "there is no C++ compiler to compile {count} kernels with"
    why = "neither g++ nor clang++ is on the PATH, and CXX names no other; cached kernels are known by its version"
    try_ = (
        "pip install torch-kiln[cc]",
        "install g++",
        "ship a bundle that was compiled on another machine of this kind",
    )


class KernelsDoNotCompile(KilnError):
    code = "KILN4102"
    what = "the C++ compiler refused kernels {symbols}"
    why = "{message}"
    try_ = ("report the kernel source, which KILN_DUMP=folder writes",)


@final
@dataclass
class Unit:
    """One translation unit and its g++ process."""

    kernels: list[Kernel]
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def output(self) -> Path:
        return self.folder / "kernels.so"


@dataclass
class Compilation:
    """A running compilation; it is stopped when the object dies."""

    kernels: Sequence[Kernel]
    store: DiskStore
    events: EventSink
    toolchain: Toolchain | None
    known: dict[str, Path]
    cubins: CubinCompilation
    limits: CompileLimits
    units: list[Unit] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    made: Libraries | KilnError | None = None

    def __post_init__(self) -> None:
        weakref.finalize(self, end_units, self.units)

    @property
    def waited(self) -> bool:
        return self.made is not None

    def wait(self) -> Libraries:
        """Raises KernelsDoNotCompile with the compiler's message, CompilerTooSlow, TritonRefused, NoTriton."""
        if self.made is None:
            try:
                self.made = self._libraries()
            except KilnError as problem:
                self.made = problem
        if isinstance(self.made, KilnError):
            raise self.made
        return self.made

    def _libraries(self) -> Libraries:
        paths = dict(self.known)
        kept: list[Path] = []
        counted = {"compiled": sum(len(unit.kernels) for unit in self.units), "units": len(self.units)}
        try:
            for unit in self.units:
                path = self.finish(unit)
                paths.update((kernel.symbol, path) for kernel in unit.kernels)
                kept += [unit.folder] if path == unit.output else []
            cubins = self.cubins.wait()
        finally:
            self.stop(kept)
        seconds = time.perf_counter() - self.started
        self.events.emit("compiled_kernels", **counted, cached=len(self.known), seconds=seconds)
        libraries = Libraries(paths, self.kernels, cubins)
        for folder in kept:
            weakref.finalize(libraries, shutil.rmtree, folder, ignore_errors=True)
        return libraries

    def finish(self, unit: Unit) -> Path:
        """Wait for g++ and put the library into the store, or leave it in its folder if the store cannot be written."""
        await_compiler(unit.process, self.limits, self.started, symbols_text(unit.kernels))
        assert self.toolchain is not None
        try:
            body = unit.output.read_bytes()
        except OSError as error:
            raise NoWorkingFolder(problem=reason(error)) from error
        try:
            path = self.store.put_file("library", body)
        except OSError:
            return unit.output
        for kernel in unit.kernels:
            self.store.put("kernel", kernel_key(kernel, self.toolchain), path.name.encode())
        return path

    def stop(self, kept: Sequence[Path] = ()) -> None:
        """End what still runs and remove the working folders but `kept`."""
        self.cubins.stop()
        end_units(self.units, kept)
        self.units.clear()


def end_units(units: Sequence[Unit], kept: Sequence[Path] = ()) -> None:
    for unit in units:
        end_group(unit.process)
        if unit.folder not in kept:
            shutil.rmtree(unit.folder, ignore_errors=True)


def compile_kernels(kernels: Sequence[Kernel], store: DiskStore, events: EventSink, workers: int = 0) -> Libraries:
    """All kernels of a plan as loaded functions and cubins; compiles those that the store does not have."""
    return start_compile(kernels, store, events, workers).wait()


def start_compile(
    kernels: Sequence[Kernel],
    store: DiskStore,
    events: EventSink,
    workers: int = 0,
    limits: CompileLimits = CompileLimits(),
) -> Compilation:
    """Look the kernels up and start g++ and Triton for the missing ones; `workers` 0: one per core.

    Raises NoCompiler, NoWorkingFolder, CompilerTooSlow.
    """
    cubins = start_cubins(kernels, store, events, workers, limits)
    distinct = cpp_kernels(kernels)
    if not distinct:
        return Compilation(distinct, store, events, None, {}, cubins, limits)
    compiler = required_compiler(distinct, limits)
    known: dict[str, Path] = {}
    for kernel in distinct:
        name = store.get("kernel", kernel_key(kernel, compiler))
        path = store.file("library", name.decode()) if name is not None else None
        if path is not None:
            known[kernel.symbol] = path
    missing = [kernel for kernel in distinct if kernel.symbol not in known]
    work = Compilation(distinct, store, events, compiler, known, cubins, limits)
    for group in balanced_groups(missing, workers or os.cpu_count() or 1):
        work.units.append(start_unit(group, compiler, store, limits))
    return work


def cpp_kernels(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The C++ kernels, each once."""
    return list({kernel.symbol: kernel for kernel in kernels if kernel.language == "cpp"}.values())


def required_compiler(kernels: Sequence[Kernel], limits: CompileLimits) -> Toolchain:
    """Raises NoCompiler, CompilerTooSlow."""
    compiler = toolchain(min(limits.seconds or VERSION_SECONDS, VERSION_SECONDS))
    if compiler is None:
        raise NoCompiler(count=len(kernels))
    if isinstance(compiler, CompilerTooSlow):
        raise compiler.with_traceback(None)
    return compiler


def await_compiler(process: subprocess.Popen[bytes], limits: CompileLimits, started: float, symbols: str) -> None:
    """Wait until g++ has compiled these kernels. Raises CompilerTooSlow, CompilerOutOfMemory, KernelsDoNotCompile."""
    message = output_of(process, limits.timeout(time.perf_counter() - started))
    if message is None:
        raise CompilerTooSlow(compiler="g++", seconds=limits.seconds, work=f"kernels {symbols}")
    if process.returncode and limits.megabytes and NO_MEMORY.search(message):
        raise CompilerOutOfMemory(compiler="g++", megabytes=limits.megabytes, work=symbols, message=message[-300:])
    if process.returncode:
        raise KernelsDoNotCompile(symbols=symbols, message=message)


def symbols_text(kernels: Sequence[Kernel]) -> str:
    return ", ".join([kernel.symbol for kernel in kernels])


def kernel_key(kernel: Kernel, compiler: Toolchain) -> str:
    further = [version("halide")] if HALIDE_BLOCK in kernel.source else []
    return content_key(kernel.symbol, kernel.source, compiler.key(), *further)


def balanced_groups(kernels: Sequence[Kernel], workers: int) -> list[list[Kernel]]:
    """At most `workers` groups of about equal source length, longest kernels placed first."""
    total = sum(len(kernel.source) for kernel in kernels)
    count = max(1, min(workers, len(kernels), total // SMALL_UNIT))
    groups: list[list[Kernel]] = [[] for _ in range(count)]
    lengths = [0] * count
    for kernel in sorted(kernels, key=lambda kernel: (-len(kernel.source), kernel.symbol)):
        position = lengths.index(min(lengths))
        groups[position].append(kernel)
        lengths[position] += len(kernel.source)
    return [group for group in groups if group]


def start_unit(kernels: list[Kernel], compiler: Toolchain, store: DiskStore, limits: CompileLimits) -> Unit:
    """Raises NoWorkingFolder."""
    folder = working_folder(store)
    source, output = folder / "kernels.cpp", folder / "kernels.so"
    command = [*compiler.command, *compiler.options, str(source), *compiler.linked, "-o", str(output)]
    if any(HALIDE_BLOCK in kernel.source for kernel in kernels):
        command = [sys.executable, HALIDE_UNIT, str(source), *command]
    try:
        source.write_text("\n".join(kernel.source for kernel in kernels))
        return Unit(kernels, folder, start_limited(command, limits, folder))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NoWorkingFolder(problem=reason(error)) from error
