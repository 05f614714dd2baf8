"""All C++ kernels of a plan in one shared library, for packages.

    data = one_library(kernels, native(toolchain), store)

Units are compiled to objects at the same time and linked together; the store keeps the library.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kiln.build.cpp_compile import KernelsDoNotCompile, NoCompiler, balanced_groups, kernel_key
from kiln.build.limits import CompileLimits, CompilerTooSlow, end_group, output_of, start_limited, working_folder
from kiln.build.toolchain import VERSION_SECONDS, Toolchain, toolchain
from kiln.plan.plan import Kernel
from kiln.runtime.cache.store import DiskStore, content_key

KIND = "package"
NATIVE = "-march=native"
LINKED = "kernels.so"


def one_library(
    kernels: Sequence[Kernel], store: DiskStore, limits: CompileLimits, workers: int, level: str = ""
) -> bytes:
    """The library, of functions that only the instructions of `level` ("x86-64-v3"; "": of this machine) need.

    Raises NoCompiler, NoWorkingFolder, CompilerTooSlow, KernelsDoNotCompile.
    """
    distinct = list({kernel.symbol: kernel for kernel in kernels if kernel.language == "cpp"}.values())
    compiler = toolchain(min(limits.seconds or VERSION_SECONDS, VERSION_SECONDS))
    if compiler is None:
        raise NoCompiler(count=len(distinct))
    if isinstance(compiler, CompilerTooSlow):
        raise compiler.with_traceback(None)
    compiler = for_level(compiler, level)
    key = content_key(*sorted(kernel_key(kernel, compiler) for kernel in distinct))
    known = store.get(KIND, key)
    if known is not None:
        return known
    folder = working_folder(store)
    try:
        groups = balanced_groups(distinct, workers)
        made = linked(compiled(groups, compiler, limits, folder), compiler, limits, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    store.put(KIND, key, made)
    return made


def for_level(compiler: Toolchain, level: str) -> Toolchain:
    options = [f"-march={level}" if option == NATIVE and level else option for option in compiler.options]
    return replace(compiler, options=tuple(options))


def compiled(groups: Sequence[list[Kernel]], compiler: Toolchain, limits: CompileLimits, folder: Path) -> list[Path]:
    """The objects of the units."""
    options = ["-c", *[option for option in compiler.options if option not in ("-shared", "-nostdlib")]]
    units = [folder / f"unit{number}.cpp" for number in range(len(groups))]
    started = time.perf_counter()
    running = []
    try:
        for unit, group in zip(units, groups, strict=True):
            unit.write_text("\n".join(kernel.source for kernel in group))
            command = [*compiler.command, *options, str(unit), "-o", str(unit.with_suffix(".o"))]
            running.append(start_limited(command, limits, folder))
        for process, group in zip(running, groups, strict=True):
            symbols = ", ".join(kernel.symbol for kernel in group)
            finish(
                output_of(process, limits.timeout(time.perf_counter() - started)), process.returncode, limits, symbols
            )
    finally:
        for process in running:
            end_group(process)
    return [unit.with_suffix(".o") for unit in units]


def linked(objects: Sequence[Path], compiler: Toolchain, limits: CompileLimits, folder: Path) -> bytes:
    output = folder / LINKED
    command = [*compiler.command, *compiler.options, *map(str, objects), *compiler.linked, "-o", str(output)]
    process = start_limited(command, limits, folder)
    try:
        finish(output_of(process, limits.timeout()), process.returncode, limits, "linked together")
    finally:
        end_group(process)
    return output.read_bytes()


def finish(message: str | None, status: int, limits: CompileLimits, symbols: str) -> None:
    if message is None:
        raise CompilerTooSlow(compiler="g++", seconds=limits.seconds, work=f"kernels {symbols}")
    if status:
        raise KernelsDoNotCompile(symbols=symbols, message=message)
