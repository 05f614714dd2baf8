"""How reductions of columns lie in memory, and how many rows make one that fits the accesses of a GPU.

    x[i0, i2, i1] over (i2: 65536), 33 elements per row      ColumnLayout(rows 65536, outer 16, length 33)
    rows_together(layout, H100)                              32: a row of 1,056 elements, 33 lines of the cache

The time of a pass over memory is estimated: lanes of blocks that are empty, accesses of single elements, processors
without work; and the parts that are left of the rows that became one, written and read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import final

from kiln.loops.body.affine import affine
from kiln.loops.body.body import Compute, Const, Load
from kiln.loops.body.indexing import Axis, linear_index, points
from kiln.loops.program.analyses import node_axes, reads, written
from kiln.loops.program.nodes import Buffer, Extern, LoopNode, Reduction
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import symbol
from kiln.tensor.size_hint import size_hint

ACCESS_BYTES, LINE_BYTES = 16, 128
"""The widest access of a thread; what a warp reads at once."""
UNALIGNED = 1.5
"""How much longer a pass over memory takes in accesses of one element."""
FEWEST_TURNS = 16
"""Rows of a part; with fewer, the parts are no longer small."""
MOST_ROWS = 1 << 13
"""Rows that become one."""
LOADED_WHOLE = 1 << 12
"""Elements of short columns that a program loads at once: all accesses are in flight together, wide or not."""
PROGRAMS = 4
"""Programs per multiprocessor that keep memory busy."""
LAUNCH_BYTES = 1 << 22
"""Bytes that are read in the time of a launch."""
WORTH = 0.9
"""A split pays where it takes at most this share of the time."""


@final
@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A reduction whose rows lie one after the other: `rows` of `length` elements, `outer` times.

    `axis`: that of the rows; `inside`: how many of the kept axes, the last ones, lie within a row.
    """

    axis: Axis
    rows: int
    outer: int
    length: int
    inside: int
    itemsize: int

    @property
    def bytes(self) -> int:
        return self.outer * self.rows * self.length * self.itemsize

    def in_rows(self, rows: int) -> tuple[Axis, Axis, Axis]:
        """The axes where `rows` rows are one: the row in it, the turn, and the rows that are left."""
        name = self.axis.symbol
        sizes = {"r": rows, "t": self.rows // rows, "u": self.rows % rows}
        row, turn, left = (Axis(symbol(f"{name}_{suffix}"), size) for suffix, size in sizes.items())
        return row, turn, left


def column_layout(node: Reduction, buffers: Mapping[str, Buffer]) -> ColumnLayout | None:
    """How `node` reads memory, if all that it reads has such rows."""
    if not node.kept or not all(isinstance(axis.size, int) and axis.size > 0 for axis in node_axes(node)):
        return None
    if not all(isinstance(op, Load | Const | Compute) for op in node.body.ops):
        return None
    loops = [axis.symbol for axis in node_axes(node)]
    forms = []
    for load in reads(node):
        form = None if load.conditional else affine(linear_index(buffers[load.buffer].spec, load.index), loops)
        if form is None or not all(isinstance(stride, int) and stride > 0 for stride in form.strides.values()):
            return None
        forms.append((form, buffers[load.buffer].spec.dtype.itemsize))
    full = [form for form, _ in forms if any(axis.symbol in form.strides for axis in node.reduced)]
    if not full:
        return None
    axis = min(node.reduced, key=lambda axis: size_hint(full[0].strides.get(axis.symbol, 1 << 62)))
    length, inside = 1, 0
    for kept in reversed(node.kept):
        if any(kept.symbol in form.strides and form.strides[kept.symbol] != length for form in full):
            break
        length, inside = length * size_hint(kept.size), inside + 1
    within = [kept.symbol for kept in node.kept[len(node.kept) - inside :] if kept.size != 1]
    for form, _ in forms:
        wanted = length if form in full else 0
        if form.strides.get(axis.symbol, 0) != wanted or any((kept in form.strides) != bool(wanted) for kept in within):
            return None
    rows, outer = size_hint(axis.size), size_hint(points(node.kept)) // length
    outer *= size_hint(points(node.reduced)) // rows
    itemsize = min(itemsize for form, itemsize in forms if form in full)
    return ColumnLayout(axis, rows, outer, length, inside, itemsize) if length > 1 else None


def rows_together(layout: ColumnLayout, target: Target, launch_bytes: int = LAUNCH_BYTES) -> int:
    """How many rows become one; 1 where they stay apart. `launch_bytes`: what a further launch costs."""
    if layout.rows * _width(layout, 1) <= LOADED_WHOLE:
        return 1
    best, chosen = WORTH * layout.bytes * _time_of_access(layout, 1, target), 1
    rows = 2
    while rows <= min(layout.rows // FEWEST_TURNS, MOST_ROWS):
        parts = 2 * 4 * layout.outer * layout.length * rows
        rest = layout.bytes * (layout.rows % rows) / layout.rows * UNALIGNED
        time = layout.bytes * _time_of_access(layout, rows, target) + parts + rest + launch_bytes
        if time < best:
            best, chosen = time, rows
        rows *= 2
    return chosen


def _time_of_access(layout: ColumnLayout, rows: int, target: Target) -> float:
    """How long reading takes, if `rows` rows are one: 1 where blocks are full, accesses wide, the machine busy."""
    length, width = layout.length * rows, _width(layout, rows)
    blocks = -(-length // width)
    starts = length if layout.outer == 1 else gcd(length, layout.length * layout.rows)
    aligned = starts * layout.itemsize % ACCESS_BYTES == 0
    idle = max(PROGRAMS * target.multiprocessors / (layout.outer * blocks), 1.0) if rows > 1 else 1.0
    return blocks * width / length * (1.0 if aligned else UNALIGNED) * idle


def _width(layout: ColumnLayout, rows: int) -> int:
    """Elements of a block, if `rows` rows are one."""
    return min(1 << (layout.length * rows - 1).bit_length(), LINE_BYTES // layout.itemsize)


def joins_a_loop(node: Reduction, later: Sequence[LoopNode]) -> bool:
    """Does a loop over as many points depend on it? Both are one kernel, which goes through each column again."""
    made, size = {node.out.name}, size_hint(points(node_axes(node)))
    for other in later:
        if any(read.buffer in made for read in reads(other)):
            if not isinstance(other, Extern) and size_hint(points(node_axes(other))) >= size:
                return True
            made.update(written(other))
    return False
