"""A region as compiling leaves it: what runs it, and what writes it to disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from kiln.pipeline.stages import Executable


@final
@dataclass(frozen=True, slots=True)
class CompiledRegion:
    """`write` makes the bytes that `load_region` reads; None where the region cannot be written."""

    run: Executable
    write: Callable[[], bytes] | None = None
