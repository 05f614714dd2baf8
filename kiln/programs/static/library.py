"""`Program.static_library`: a program as a static library with a C header, which needs libc and libm only.

    made = program.static_library("libnet.a", target="cpu:aarch64")
    print(made)

        libnet.a for cpu:aarch64: 41 kB of code, 38 kB of weights; a call needs 512*batch bytes

docs/export.md describes the header and what is refused.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, final

import torch

from kiln.build.cpp_compile import await_compiler, required_compiler
from kiln.build.limits import CompileLimits, end_group, start_limited
from kiln.packages.machine import LEVELS
from kiln.pipeline.reproduce import plain_context
from kiln.plan.plan import Slot
from kiln.programs.call.errors import BadExportArgument
from kiln.programs.package_writer import plan_program
from kiln.programs.program_parts import ProgramParts
from kiln.programs.static.errors import NoCrossCompiler
from kiln.programs.static.header import interface_in_c
from kiln.programs.static.places import Places
from kiln.programs.static.source import SourceWriter
from kiln.support.options import Options
from kiln.support.records import dataclass
from kiln.support.replaced_file import replaced_file
from kiln.support.target import Target
from kiln.symbolic import Int

CROSS = {"aarch64": "aarch64-linux-gnu-g++"}
"""Compilers for other machines, as Debian calls them."""
MARCH = {**{level: (width, level) for level, (width, _) in LEVELS.items()}, "aarch64": (16, "armv8-a")}
"""Bytes of vectors, and what g++ takes after `-march=`."""
TARGETS = ("cpu", *[f"cpu:{level}" for level in MARCH])
OPTIONS = (
    "-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-w",
    "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-c",
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class StaticLibrary:
    """`code_bytes`: the library without its weights. `arena`: bytes of working memory of a call, a formula."""

    path: str
    header: str
    target: str
    code_bytes: int
    weights_bytes: int
    arena: Int

    def __str__(self) -> str:
        return (
            f"{self.path} for {self.target}: {self.code_bytes} bytes of code, {self.weights_bytes} of weights;"
            f" a call needs {self.arena}"
        )


def write_static_library(
    program: ProgramParts,
    path: str | os.PathLike[str],
    header: str | os.PathLike[str] | None,
    target: str,
    weights: Literal["embedded", "mapped"],
    options: Options,
) -> StaticLibrary:
    """Compile and write; `Program.static_library` says what. Raises KilnError."""
    if target not in TARGETS:
        raise BadExportArgument(name="target", value=target, allowed=", ".join(TARGETS))
    if weights not in ("embedded", "mapped"):
        raise BadExportArgument(name="weights", value=weights, allowed="'embedded' or 'mapped'")
    library = Path(path)
    declared = Path(header) if header is not None else library.with_suffix(".h")
    prefix = re.sub(r"\W", "_", library.stem.removeprefix("lib"), flags=re.ASCII) or "model"
    prefix = f"_{prefix}" if prefix[0].isdigit() else prefix
    _, _, machine = target.partition(":")
    context = plain_context(options)
    host = on_target(context.host, machine)
    plan, _ = plan_program(program, replace(context, host=host))
    interface = interface_in_c(plan, program.interface, prefix, weights == "mapped")
    tensors: dict[Slot | str, torch.Tensor] = {key: tensor for key, tensor in program.constants.items()}
    tensors.update({slot: program.state[state.name] for slot, state in enumerate(program.interface.signature.states)})
    lanes = host.vector_bytes // 4
    writer = SourceWriter(Places(plan, interface, tensors, lanes), lanes)
    limits = CompileLimits(options.compile_seconds, options.compile_megabytes)
    command, ar = tools(machine)
    march = f"-march={MARCH[machine][1] if machine else 'native'}"
    source = writer.source()
    with tempfile.TemporaryDirectory(prefix="kiln-library-") as place:
        folder = Path(place)
        with (folder / "weights").open("wb") as file:
            source.weights.write(file)
        text = interface.header(source.arena, source.weights.size)
        (folder / "library.cpp").write_text(f"{text}\n{source.text}")
        call = [
            *command,
            *OPTIONS,
            march,
            f"-Wa,-I{folder}",
            str(folder / "library.cpp"),
            "-o",
            str(folder / "library.o"),
        ]
        run_tool(call, limits, folder, library.name)
        run_tool([*ar, "rcsD", str(folder / "library.a"), str(folder / "library.o")], limits, folder, library.name)
        data = (folder / "library.a").read_bytes()
        if weights == "mapped":
            with replaced_file(library.with_suffix(".weights")) as file:
                source.weights.write(file)
    with replaced_file(library) as file:
        file.write(data)
    with replaced_file(declared) as file:
        file.write(text.encode())
    code = len(data) - (0 if weights == "mapped" else source.weights.size)
    return StaticLibrary(str(library), str(declared), target, code, source.weights.size, source.arena)


def on_target(host: Target, machine: str) -> Target:
    """The library runs on one thread."""
    if not machine:
        return replace(host, threads=1)
    return replace(host, threads=1, vector_bytes=MARCH[machine][0], isa=machine)


def tools(machine: str) -> tuple[Sequence[str], Sequence[str]]:
    """The compiler and the archiver. Raises NoCrossCompiler, NoCompiler."""
    if machine in CROSS and os.uname().machine != machine:
        if shutil.which(CROSS[machine]) is None:
            raise NoCrossCompiler(machine=machine, command=CROSS[machine])
        command: Sequence[str] = [CROSS[machine]]
    else:
        command = required_compiler([], CompileLimits()).command
    if Path(command[0]).name == "zig":
        return command, [command[0], "ar"]
    asked = subprocess.run([*command, "-print-prog-name=ar"], capture_output=True, text=True, check=False, timeout=60)
    return command, [asked.stdout.strip() or "ar"]


def run_tool(command: Sequence[str], limits: CompileLimits, folder: Path, work: str) -> None:
    """Raises CompilerTooSlow, CompilerOutOfMemory, KernelsDoNotCompile."""
    process = start_limited(command, limits, folder)
    try:
        await_compiler(process, limits, time.perf_counter(), work)
    finally:
        end_group(process)
