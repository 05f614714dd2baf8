"""What decides how a program is compiled, besides the program: the part that keys of the on-disk cache share."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import torch

from kiln.runtime.cache.store import content_key
from kiln.runtime.code_file import MAGIC
from kiln.runtime.libraries import machine_name
from kiln.support.options import Options
from kiln.support.target import Target

WITHOUT_EFFECT = frozenset(("cache", "cache_dir", "compile_workers", "progress"))
"""Options that do not change what is compiled."""


def compile_key(options: Options, target: Target) -> str:
    """Versions, this compiler, the machine, options."""
    settings = {name: value for name, value in asdict(options).items() if name not in WITHOUT_EFFECT}
    return content_key(environment(), repr(settings), repr(target))


@lru_cache(maxsize=1)
def environment() -> str:
    """Versions of all that takes part; this compiler by its contents, which change between versions too."""
    folder = Path(__file__).parents[1]
    sources = sorted(path for pattern in ("*.py", "*.h") for path in folder.rglob(pattern))
    contents = [path.read_bytes() for path in sources]
    return content_key(sys.version, MAGIC, torch.__version__, machine_name(), *contents)
