"""A kernel while it is assembled: its loops, and the views under which it sees the buffers of the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import final

from kiln.loops.body.indexing import Axis
from kiln.loops.kernel.kernel import Local, Phase
from kiln.loops.program.nodes import Buffer
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol


@final
@dataclass(frozen=True, slots=True)
class Reusable:
    """`dying`: arguments that results may be written over. `landing`: results by the argument of the region that they
    are written back to. `placed`: results that have their memory: an argument of the region which nothing reads."""

    dying: tuple[str, ...] = ()
    landing: Mapping[str, str] = field(default_factory=dict)
    placed: frozenset[str] = frozenset()


@final
@dataclass(frozen=True, slots=True)
class KernelDraft:
    """Units, phases and locals under the names of the program; `buffers` are those of the program that they use."""

    name: str
    units: tuple[Axis, ...]
    phases: tuple[Phase, ...]
    locals: tuple[Local, ...]
    buffers: Mapping[str, Buffer]
    strip: int = 0
    grain: int = 1
    origin: str = ""
    memory: Reusable = Reusable()
    views: Mapping[str, Buffer] = field(default_factory=dict)
    dims: Mapping[str, tuple[Symbol | None, ...]] = field(default_factory=dict)
    """For each view the axis that runs along each dimension; None: the dimension is indexed by an address."""
    sizes: Mapping[Symbol, Int] = field(default_factory=dict)
    """Values of the sizes that became arguments."""
    overwrites: Mapping[str, str] = field(default_factory=dict)
    """Results by the arguments whose memory they took over."""
