"""What a package demands of the machine and the process that load it.

"cpu"                  the machine that compiles: all of its instructions
"cpu:x86-64-v3"        every machine of this level
"cuda:sm_90"           a GPU of this compute capability; code on the host as "cpu"
"""

from __future__ import annotations

import os
import re
from typing import final

import torch

from kiln.packages.errors import ForeignPackage
from kiln.plan.encode import FORMAT
from kiln.programs.call.fields import Fields, Json
from kiln.runtime.kernels import instruction_sets
from kiln.support.records import dataclass
from kiln.support.target import cpu_flags

X86_V2 = frozenset(("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"))
X86_V3 = X86_V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
X86_V4 = X86_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: dict[str, tuple[int, frozenset[str]]] = {
    "x86-64-v2": (16, X86_V2), "x86-64-v3": (32, X86_V3), "x86-64-v4": (64, X86_V4)
}  # fmt: skip
"""Bytes of the widest vectors and CPU flags, by the name that g++ takes after `-march=`."""
GPU = re.compile(r"cuda:sm_(\d+)(\d)")


@final
@dataclass(frozen=True, slots=True)
class PackageTarget:
    """A target, parsed: `level` of the CPU, "" for this machine; `capability` of the GPU, if any."""

    level: str = ""
    capability: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.capability is not None:
            return "cuda:sm_{}{}".format(*self.capability)
        return f"cpu:{self.level}" if self.level else "cpu"


TARGETS = ("cpu", *[f"cpu:{level}" for level in LEVELS], "cuda:sm_90 (or another compute capability)")


def parse_target(text: str) -> PackageTarget | None:
    """None for a text that names no target."""
    gpu = GPU.fullmatch(text)
    if gpu is not None:
        return PackageTarget(capability=(int(gpu[1]), int(gpu[2])))
    device, _, level = text.partition(":")
    if device != "cpu" or (level or text) not in (*LEVELS, "cpu"):
        return None
    return PackageTarget(level)


@final
@dataclass(frozen=True, slots=True)
class Requirements:
    """`instructions` are CPU flags as Linux names them; `steps` is the format of the native program."""

    architecture: str
    instructions: tuple[str, ...]
    torch: str
    steps: int

    def to_json(self) -> Json:
        return {
            "architecture": self.architecture,
            "instructions": list(self.instructions),
            "torch": self.torch,
            "steps": self.steps,
        }

    def check(self) -> None:
        """Raise ForeignPackage unless this process has what is needed."""
        here = requirements(PackageTarget(), uses_cpu_code=False)
        for kind, needed, found in (
            ("machine", self.architecture, here.architecture),
            ("version of torch", f"torch {self.torch}", f"torch {here.torch}"),
            ("version of Kiln", f"plan format {self.steps}", f"plan format {here.steps}"),
        ):
            if needed != found:
                raise ForeignPackage(kind=kind, needed=needed, found=found)
        if lacking := sorted(set(self.instructions) - cpu_flags()):
            raise ForeignPackage(kind="machine", needed=", ".join(lacking), found="a CPU without them")


def requirements(target: PackageTarget, *, uses_cpu_code: bool) -> Requirements:
    """Of a package that is made here."""
    instructions = LEVELS[target.level][1] if target.level else instruction_sets()
    version = ".".join(torch.__version__.split(".")[:2])
    return Requirements(os.uname().machine, tuple(sorted(instructions)) if uses_cpu_code else (), version, FORMAT)


def requirements_from_json(data: Json) -> Requirements:
    """Inverse of `Requirements.to_json`. Raises DamagedProgram."""
    fields = Fields(data, "the requirements")
    made = Requirements(
        fields.text("architecture"),
        fields.texts("instructions"),
        fields.text("torch"),
        fields.integer("steps", 1 << 32),
    )
    fields.finish()
    return made
