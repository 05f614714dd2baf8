"""All C++ kernels of a plan in one shared library, for packages.

    data = one_library(kernels, store, limits, workers=2, level="x86-64-v3")

Units are compiled to objects at the same time and linked together; the store keeps the library.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kiln.build.cpp_compile import (
    await_compiler,
    balanced_groups,
    cpp_kernels,
    kernel_key,
    required_compiler,
    symbols_text,
)
from kiln.build.limits import CompileLimits, NoWorkingFolder, end_group, start_limited, working_folder
from kiln.build.toolchain import Toolchain
from kiln.plan.plan import Kernel
from kiln.runtime.cache.private_folder import reason
from kiln.runtime.cache.store import DiskStore, content_key

KIND = "package"
NATIVE = "-march=native"
LINKED = "kernels.so"


def one_library(
    kernels: Sequence[Kernel], store: DiskStore, limits: CompileLimits, workers: int, level: str = ""
) -> bytes:
    """The library, of functions that only the instructions of `level` ("x86-64-v3"; "": of this machine) need.

    Raises NoCompiler, NoWorkingFolder, CompilerTooSlow, CompilerOutOfMemory, KernelsDoNotCompile.
    """
    distinct = cpp_kernels(kernels)
    compiler = for_level(required_compiler(distinct, limits), level)
    key = content_key(*sorted(kernel_key(kernel, compiler) for kernel in distinct))
    known = store.get(KIND, key)
    if known is not None:
        return known
    folder = working_folder(store)
    try:
        made = built(balanced_groups(distinct, workers), compiler, limits, folder)
    except OSError as error:
        raise NoWorkingFolder(problem=reason(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    store.put(KIND, key, made)
    return made


def for_level(compiler: Toolchain, level: str) -> Toolchain:
    options = [f"-march={level}" if option == NATIVE and level else option for option in compiler.options]
    return replace(compiler, options=tuple(options))


def built(groups: Sequence[list[Kernel]], compiler: Toolchain, limits: CompileLimits, folder: Path) -> bytes:
    """The library of these units."""
    options = ["-c", *[option for option in compiler.options if option not in ("-shared", "-nostdlib")]]
    started = time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []

    def start(options: Sequence[str]) -> None:
        running.append(start_limited([*compiler.command, *options], limits, folder))

    try:
        for number, group in enumerate(groups):
            (folder / f"unit{number}.cpp").write_text("\n".join(kernel.source for kernel in group))
            start([*options, str(folder / f"unit{number}.cpp"), "-o", str(folder / f"unit{number}.o")])
        for process, group in zip(running, groups, strict=True):
            await_compiler(process, limits, started, symbols_text(group))
        objects = [str(folder / f"unit{number}.o") for number in range(len(groups))]
        start([*compiler.options, *objects, *compiler.linked, "-o", str(folder / LINKED)])
        await_compiler(
            running[-1], limits, time.perf_counter(), symbols_text([kernel for group in groups for kernel in group])
        )
        return (folder / LINKED).read_bytes()
    finally:
        for process in running:
            end_group(process)
