"""Split index reductions: where a GPU would have too few programs, each with too many points, parts are searched first.

    at[i0] = argmax over (i1: 65536) of x[i0, i1]

    best[b, i0] = amax over (p: 4096) of x[i0, 4096*b + p]      one kernel: both read the same
    part[b, i0] = argmax over (p: 4096) of x[i0, 4096*b + p]
    first[i0]   = argmax over (q: 16) of best[q, i0]
    at[i0]      = 4096*first[i0] + part[first[i0], i0]

The first of equal elements is in the first part whose best is equal, and a NaN makes its part's best NaN: so the index
is that of the whole. On a CPU the second reduction costs more than a few threads gain. Fusion splits the other
reductions (`fusion/split.py`): it knows how to add parts up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.analyses import result_dtypes
from kiln.loops.body.body import Check, Index, LoopBody
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import Axis, points, stride_along
from kiln.loops.program.analyses import program_buffers, reads
from kiln.loops.program.nodes import Buffer, LoopNode, LoopProgram, Pointwise, ReduceOp, Reduction
from kiln.loops.program.reductions import reduce_start
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Int, ceil_div, is_static, rel_lt, symbol
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec

BEST = {ReduceOp.ARGMAX: ReduceOp.MAX, ReduceOp.ARGMIN: ReduceOp.MIN}
ROW_PART, COLUMN_PART = 1 << 12, 1 << 6
"""The shortest parts of a row and of a column that are worth a program."""
STRIP = 32
"""Columns that one program searches together."""
PROGRAMS = 4
"""Programs per multiprocessor that keep memory busy."""


@final
@dataclass(frozen=True)
class SplitIndexReductions:
    """Index reductions that leave the machine idle, as four nodes."""

    name = "split-index-reductions"

    def run(self, program: LoopProgram, target: Target) -> tuple[LoopProgram, int]:
        buffers = program_buffers(program)
        nodes: list[LoopNode] = []
        changes = 0
        for node in program.nodes:
            part = _part(node, buffers, target) if isinstance(node, Reduction) and node.op in BEST else None
            if part is None or not isinstance(node, Reduction):
                nodes.append(node)
            else:
                nodes += _Split(node, part).nodes()
                changes += 1
        return (replace(program, nodes=tuple(nodes)) if changes else program), changes


def _part(node: Reduction, buffers: dict[str, Buffer], target: Target) -> Int | None:
    """Points of a part; None where the reduction stays whole."""
    (axis,) = node.reduced
    length, kept = size_hint(axis.size), size_hint(points(node.kept))
    (dtype,) = result_dtypes(node.body)
    if dtype == torch.bool:
        return None
    layouts = [(buffers[load.buffer].spec, load.index) for load in reads(node)]
    along_rows = any(stride_along(*layout, axis.symbol) == 1 for layout in layouts)
    units, shortest = (kept, ROW_PART) if along_rows else (-(-kept // STRIP), COLUMN_PART)
    parts = min(PROGRAMS * target.multiprocessors // max(units, 1), length // shortest)
    if parts < 2:
        return None
    if is_static(axis.size):
        exact = next((count for count in range(parts, parts // 2, -1) if axis.size % count == 0), None)
        parts = exact or parts
    return ceil_div(axis.size, parts)


@final
class _Split:
    def __init__(self, node: Reduction, part: Int) -> None:
        self.node, self.part = node, part
        (self.axis,) = node.reduced
        name = node.out.name
        self.outer = Axis(symbol(f"{self.axis.symbol}_b"), ceil_div(self.axis.size, part))
        self.inner = Axis(symbol(f"{self.axis.symbol}_p"), part)
        (dtype,) = result_dtypes(node.body)
        self.best = Buffer(f"{name}_best", self._spec(dtype, (self.outer, *node.kept)))
        self.within = Buffer(f"{name}_part", self._spec(torch.int64, (self.outer, *node.kept)))
        self.first = Buffer(f"{name}_first", self._spec(torch.int64, node.kept))

    def _spec(self, dtype: torch.dtype, axes: tuple[Axis, ...]) -> TensorSpec:
        return replace(self.node.out.spec, dtype=dtype).with_sizes(tuple([axis.size for axis in axes]))

    def nodes(self) -> Iterator[LoopNode]:
        node, kept = self.node, (self.outer, *self.node.kept)
        body = self._body_of_parts()
        yield Reduction(self.best, kept, (self.inner,), BEST[node.op], body, node.origin)
        yield Reduction(self.within, kept, (self.inner,), node.op, body, node.origin)
        builder = BodyBuilder()
        index = tuple([axis.symbol for axis in kept])
        best = builder.finish(builder.load(self.best.name, index, self.best.spec.dtype))
        yield Reduction(self.first, node.kept, (self.outer,), node.op, best, node.origin)
        yield Pointwise(node.out, node.kept, self._index_of_whole(), node.origin)

    def _body_of_parts(self) -> LoopBody:
        """The body at a point of a part; behind the end what is never chosen, as it comes last."""
        builder = BodyBuilder()
        at = self.outer.symbol * self.part + self.inner.symbol
        if is_static(self.axis.size) and is_static(self.part) and self.axis.size % self.part == 0:
            (value,) = self.node.body.run(Inline(builder, {self.axis.symbol: at}))
            return builder.finish(value)
        inside = builder.test(rel_lt(at, self.axis.size))

        def on_load(buffer: str, index: Index, dtype: torch.dtype, mask: int | None) -> int:
            both = inside if mask is None else builder.pointwise(PRIMS["bitwise_and"], torch.bool, mask, inside)
            return builder.load(buffer, index, dtype, both)

        (value,) = self.node.body.run(Inline(builder, {self.axis.symbol: at}, on_load))
        dtype = builder.dtype_of(value)
        last = builder.constant(reduce_start(BEST[self.node.op], dtype), dtype)
        return builder.finish(builder.pointwise(PRIMS["where"], dtype, inside, value, last))

    def _index_of_whole(self) -> LoopBody:
        builder = BodyBuilder()
        kept = tuple([axis.symbol for axis in self.node.kept])
        first = builder.load(self.first.name, kept, torch.int64)
        chosen = builder.bind(first, self.outer.size, check=Check.IN_RANGE)
        within = builder.load(self.within.name, (chosen, *kept), torch.int64)
        start = builder.pointwise(PRIMS["mul"], torch.int64, first, builder.index(self.part, torch.int64))
        return builder.finish(builder.pointwise(PRIMS["add"], torch.int64, start, within))
