"""How the points of a kernel map to the blocks of GPU programs: decided by `passes/choose_tiles.py`.

units (i0: n0), phase (i1: 768)             one row per program     i0 = pid        i1 = [0, 1024)
units (i0: n0), phase (i1: 48)              16 rows per program     i0: XBLOCK      i1: RBLOCK, whole
units (i0: 768), phase (i1: n0), x[i1, i0]  64 columns at a time    i0: XBLOCK      i1: RBLOCK, in a loop
units (i0: 64, i1: n0), x[i1, i0], y[i0, i1]   a tile               i0: YBLOCK      i1: XBLOCK
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import final

from kiln.loops.body.indexing import Axis
from kiln.loops.kernel.kernel import Phase
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol, is_static

VECTOR_BYTES = 16
"""The widest access of a thread."""
WHOLE_BLOCK = 8192
"""Points of a row that are loaded at once though it might be looped over."""


@final
@dataclass(frozen=True, slots=True)
class BlockDim:
    """One dimension of the blocks of a kernel: `axes` flattened (the last fastest), `block` points at a time.

    `unit`: divided among programs; otherwise a program covers all of it, in a loop if `looped`.
    """

    symbol: Symbol
    size: Int
    axes: tuple[Axis, ...]
    block: int
    name: str
    unit: bool = False
    looped: bool = False

    @property
    def exact(self) -> bool:
        """Is every block full? Blocks of an empty dimension are not."""
        point_by_point = self.block == 1 and (self.looped or self.unit)
        return point_by_point or (is_static(self.size) and self.size > 0 and self.size % self.block == 0)


@final
@dataclass(frozen=True, slots=True)
class Tiling:
    """`dims`: of all blocks, in order. `numbers`: unit axes with one value per program. `serial`: inner axes that run
    point after point. `shared`: the looped dimension whose loop holds several phases. `values`: flattened axes as
    expressions of their dimension. `unmasked`: the dimension of which full blocks run without a mask. `stages`:
    turns of a loop that load ahead. `layers`: widest accesses by which a thread covers its part of the largest block.
    """

    dims: tuple[BlockDim, ...]
    numbers: tuple[Axis, ...]
    serial: frozenset[Symbol]
    shared: BlockDim | None
    values: Mapping[Symbol, Int]
    warps: int
    unmasked: BlockDim | None = None
    stages: int = 1
    layers: int = 1

    def dim_of(self, axis: Axis) -> int | None:
        return next((position for position, dim in enumerate(self.dims) if axis in dim.axes), None)

    def in_shared_loop(self, phase: Phase) -> bool:
        """Is the phase inside the loop that holds several?"""
        return self.shared is not None and set(self.shared.axes) <= set(phase.axes)


def dims_in(dims: Iterable[BlockDim], phase: Phase) -> list[BlockDim]:
    """The dimensions that the blocks of a phase have."""
    return [dim for dim in dims if dim.unit or set(dim.axes) <= set(phase.axes)]


def block_points(dims: Iterable[BlockDim]) -> int:
    return prod(dim.block for dim in dims)
