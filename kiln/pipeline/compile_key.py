"""What all keys of the on-disk cache share: everything but the program that decides how it is compiled."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import torch

from kiln.build.toolchain import compiler_file, machine_name
from kiln.runtime.bytecode_file import MAGIC
from kiln.runtime.cache.key_builder import KeyBuilder
from kiln.runtime.cache.store import content_key
from kiln.support.options import Options
from kiln.support.target import Target

WITHOUT_EFFECT = frozenset(
    ("cache", "cache_dir", "compile_workers", "compile_budget", "compile_seconds", "compile_megabytes", "progress")
)
"""Options that do not change what is compiled."""


def compile_key(label: str, options: Options, target: Target) -> KeyBuilder:
    """A key of versions, this compiler, the machine and the options; `label` says what is stored under it."""
    key = KeyBuilder(label).add("Python", f"{sys.version} {MAGIC}").add("torch", torch.__version__)
    key.add("Kiln", compiler_contents()).add("machine", machine_name()).add("target", repr(target))
    key.add("GPUs", gpu_names()).add("C++ compiler", compiler_file())
    for name, value in asdict(options).items():
        if name not in WITHOUT_EFFECT:
            key.add(f"option {name}", repr(value))
    return key


@lru_cache(maxsize=1)
def compiler_contents() -> str:
    """A digest of this compiler's sources, which change within a version too."""
    sources = []
    for folder, inner, names in os.walk(Path(__file__).parents[1]):
        inner[:] = [name for name in inner if name != "__pycache__"]
        sources += [os.path.join(folder, name) for name in names if name.endswith((".py", ".h", ".triton"))]
    return content_key(*map(contents_of, sorted(sources)))


def contents_of(source: str) -> bytes:
    """Without what `pathlib` and buffers do for each of 800 files."""
    with open(source, "rb", buffering=0) as file:
        return file.readall()


DRIVER, MODEL = Path("/proc/driver/nvidia/gpus"), re.compile(r"^Model:\s*(.*\S)", re.M)


@lru_cache(maxsize=1)
def models_of(driver: Path) -> frozenset[str]:
    """The GPU models of the machine, as the driver names them; empty without one."""
    found = [MODEL.search(file.read_text()) for file in driver.glob("*/information")]
    return frozenset([match[1] for match in found if match])


def gpu_names(driver: Path = DRIVER) -> str:
    """The GPU models for cache keys: those of the machine if they are alike, so that it does not matter whether this
    process has used CUDA yet; else those that this process sees, once it has."""
    if len(models := models_of(driver)) == 1:
        return next(iter(models))
    seen = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    names = [torch.cuda.get_device_name(index) for index in seen]
    return names[0] if len(set(names)) == 1 else ", ".join(names)
