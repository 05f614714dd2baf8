"""What all keys of the on-disk cache share: everything but the program that decides how it is compiled."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import torch

from kiln.build.toolchain import compiler_file, machine_name
from kiln.pipeline.targets import gpu_names
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
    folder = Path(__file__).parents[1]
    sources = sorted(path for pattern in ("*.py", "*.h", "*.triton") for path in folder.rglob(pattern))
    return content_key(*(path.read_bytes() for path in sources))
