"""The C++ compiler that kernels are compiled with: what `CXX` names, g++, clang++, or the one of the package `ziglang`.

    found = toolchain()
    [*found.command, *found.options, "kernels.cpp", *found.linked, "-o", "kernels.so"]

`pip install torch-kiln[cc]` installs ziglang: Clang with a linker, and all headers that kernels need.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import final

from kiln.build.limits import CompileLimits, CompilerTooSlow, output_of, start_limited
from kiln.runtime.cache.store import content_key
from kiln.support.records import dataclass
from kiln.support.target import cpu_flags

CXX_OPTIONS = (
    "-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fvisibility=hidden", "-w", "-shared", "-fPIC", "-pipe", "-nostdlib", "-fno-use-linker-plugin",
)  # fmt: skip
"""Contraction is explicit in the source; nothing else that changes values is allowed to the compiler. Kernels need
libc and libm, which every process has: not naming them to the linker saves most of its time."""
GCC_COPIES = ("-mmove-max=256", "-mstore-max=256")
"""From GCC 12 on, with AVX2: a vector of two registers is copied a register at a time. In pieces of 16 bytes, as it is
otherwise, a load of a register behind the copy waits until these have left the store buffer."""
GCC_LINKED = ("-lgcc",)
"""After the source: conversions that the CPU has no instruction for. Clang's are found in the process."""
CLANG_HEADER = Path(__file__).parent / "clang.h"
CLANG_OPTIONS = ("-fno-sanitize=undefined", "-include", str(CLANG_HEADER))
"""Zig looks for undefined behaviour unless it is told not to."""
PROGRAMS = ("g++", "c++", "clang++")
ZIG = "ziglang"

VERSION_SECONDS = 20
"""Seconds after which a compiler that has not printed its version is taken to hang."""


@final
@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler and all that its output depends on, apart from the source."""

    command: tuple[str, ...]
    version: str
    options: tuple[str, ...]
    linked: tuple[str, ...] = ()

    def key(self) -> str:
        """The version has the contents of Kiln's own header, so that the folder of the package does not matter."""
        options = [option for option in self.options if option != str(CLANG_HEADER)]
        return content_key(self.version, *self.command[1:], "", *options, "", *self.linked, machine_name())


def compiler_command() -> tuple[str, ...] | None:
    """The program to start, with its first arguments; None if there is none."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for program, *arguments in (asked or [""], *([name] for name in PROGRAMS)):
        path = shutil.which(program) if program else None
        if path is not None:
            return path, *arguments
    found = importlib.util.find_spec(ZIG)
    zig = Path(found.origin).parent / "zig" if found is not None and found.origin else None
    return (str(zig), "cc") if zig is not None and os.access(zig, os.X_OK) else None


def toolchain(seconds: int = VERSION_SECONDS) -> Toolchain | CompilerTooSlow | None:
    """The C++ compiler, asked for its version once; None if none can be started now.

    A failed start is not remembered: there may be memory or room for another process when the next kernel is compiled.
    """
    try:
        return asked_toolchain(seconds)
    except OSError:
        return None


@lru_cache(maxsize=1)
def asked_toolchain(seconds: int) -> Toolchain | CompilerTooSlow | None:
    """Asks the C++ compiler for its version. Raises OSError."""
    command = compiler_command()
    if command is None:
        return None
    with folder_for(command) as folder:
        process = start_limited([*command, "--version"], CompileLimits(seconds, 0), folder)
        answer = output_of(process, seconds)
    if answer is None:
        return CompilerTooSlow(compiler=command[0], seconds=seconds, work="telling its version")
    if "clang" not in answer.lower():
        return Toolchain(command, answer, (*CXX_OPTIONS, *copies_of(answer, cpu_flags())), GCC_LINKED)
    return Toolchain(command, answer + content_key(CLANG_HEADER.read_text()), (*CXX_OPTIONS, *CLANG_OPTIONS))


def copies_of(version: str, flags: Collection[str]) -> tuple[str, ...]:
    """GCC's options for copies, by the first line of what it tells of itself: `g++ (Debian 12.2.0-14) 12.2.0`."""
    found = re.match(r".*\s(\d+)\.\d+", version.partition("\n")[0])
    is_new = found is not None and int(found[1]) >= 12
    return GCC_COPIES if is_new and "avx2" in flags and "avx512f" not in flags else ()


@contextmanager
def folder_for(command: Sequence[str]) -> Iterator[Path | None]:
    """A folder that Zig needs even to tell its version. Raises OSError."""
    if Path(command[0]).name != "zig":
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="kiln-zig-") as folder:
        yield Path(folder)


@lru_cache(maxsize=1)
def machine_name() -> str:
    """What `-march=native` means here: the CPU's feature flags, so that a cache can be shared by unlike machines."""
    return content_key(os.uname().machine, *sorted(cpu_flags()))


@lru_cache(maxsize=1)
def compiler_file() -> str:
    """The C++ compiler, identified by its file, since starting it would take too long for a warm start.

    So are the programs among its arguments: the second of `ccache g++`.
    """
    command = compiler_command()
    if command is None:
        return "none"
    return " ".join([file_facts(Path(command[0])), *map(argument_facts, command[1:])])


def argument_facts(argument: str) -> str:
    path = None if argument.startswith("-") else shutil.which(argument)
    return argument if path is None else f"{argument} {file_facts(Path(path))}"


def file_facts(path: Path) -> str:
    facts = path.stat()
    return f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}"
