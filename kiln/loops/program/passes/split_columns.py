"""Split columns: where rows do not fit the accesses of a GPU, every R-th row is reduced first.

    total[i0, i1] = sum over (i2: 65536) of x[i0, i2, i1]               rows of 33 elements

    part[i0, r, i1] = sum over (t: 2048) of x[i0, 32*t + r, i1]         32 rows are one row of 1,056 elements
    total[i0, i1]   = sum over (r: 32) of part[i0, r, i1]

Rows of 33 elements fill neither blocks nor accesses of 16 bytes. R of them, one after the other in memory, are a row
that does, and each lane stays in its column. What is left of the rows (`n % R`) is reduced on its own and combined. Of
index reductions the parts are a best value and its index; the first index of the best part is that of the whole.
Rows that fit stay whole: fusion splits those that leave the machine idle (`fusion/split.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.analyses import result_dtypes
from kiln.loops.body.body import LoopBody
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import Axis
from kiln.loops.program.analyses import program_buffers
from kiln.loops.program.column_layout import LAUNCH_BYTES, ColumnLayout, column_layout, joins_a_loop, rows_together
from kiln.loops.program.nodes import Buffer, LoopNode, LoopProgram, Pointwise, ReduceOp, Reduction
from kiln.loops.program.reductions import accumulator_dtype
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Int

COMBINE: Mapping[ReduceOp, str] = {
    ReduceOp.SUM: "add", ReduceOp.PROD: "mul", ReduceOp.MAX: "maximum", ReduceOp.MIN: "minimum",
    ReduceOp.ANY: "bitwise_or", ReduceOp.ALL: "bitwise_and",
}  # fmt: skip
"""Primitives that combine two partial results."""
BEST = {ReduceOp.ARGMAX: ReduceOp.MAX, ReduceOp.ARGMIN: ReduceOp.MIN}
NO_INDEX = (1 << 63) - 1  # loses against each index in a minimum


@final
@dataclass(frozen=True)
class SplitColumns:
    """`launch_bytes`: what a further launch costs."""

    launch_bytes: int = LAUNCH_BYTES
    name = "split-columns"

    def run(self, program: LoopProgram, target: Target) -> tuple[LoopProgram, int]:
        buffers = program_buffers(program)
        nodes: list[LoopNode] = []
        changes = 0
        for position, node in enumerate(program.nodes):
            split = self._split(node, program.nodes[position + 1 :], buffers, target)
            nodes += [node] if split is None else split.nodes()
            changes += split is not None
        return (replace(program, nodes=tuple(nodes)) if changes else program), changes

    def _split(
        self, node: LoopNode, later: Sequence[LoopNode], buffers: Mapping[str, Buffer], target: Target
    ) -> _SplitColumn | None:
        """How the columns of `node` are split; None where they stay whole."""
        if not isinstance(node, Reduction) or (node.op in BEST and result_dtypes(node.body) == (torch.bool,)):
            return None
        layout = column_layout(node, buffers)
        rows = 1 if layout is None else rows_together(layout, target, self.launch_bytes)
        return None if layout is None or rows == 1 or joins_a_loop(node, later) else _SplitColumn(node, layout, rows)


@final
class _SplitColumn:
    """`node` with `rows` of its rows as one."""

    def __init__(self, node: Reduction, layout: ColumnLayout, rows: int) -> None:
        self.node, self.axis, self.rows = node, layout.axis, rows
        split = len(node.kept) - layout.inside
        self.row, self.turn, self.left = layout.in_rows(rows)
        self.done = layout.rows - layout.rows % rows
        """Rows that are part of a longer one."""
        self.kept = (*node.kept[:split], self.row, *node.kept[split:])

    def nodes(self) -> Iterator[LoopNode]:
        return self._index_parts() if self.node.op in BEST else self._parts()

    def _parts(self) -> Iterator[LoopNode]:
        node, rest = self.node, self.left.size != 0
        dtype = accumulator_dtype(node.op, node.out.spec.dtype)
        part = self._buffer("part", dtype, self.kept)
        yield self._over_turns(part, node.op)
        whole = self._buffer("rows", dtype, node.kept) if rest else node.out
        builder = BodyBuilder()
        yield self._over_rows(whole, node.op, builder.finish(self._load(builder, part, self.kept)))
        if rest:
            last = self._buffer("rest", dtype, node.kept)
            yield self._over_rest(last, node.op)
            yield Pointwise(node.out, node.kept, self._combined(node.op, whole, last), node.origin)

    def _index_parts(self) -> Iterator[LoopNode]:
        """The best value of each part and its turn; of the parts with the best of all, the least row."""
        node, rest, op = self.node, self.left.size != 0, BEST[self.node.op]
        (dtype,) = result_dtypes(node.body)
        best, turn = self._buffer("best", dtype, self.kept), self._buffer("turn", torch.int64, self.kept)
        yield self._over_turns(best, op)
        yield self._over_turns(turn, node.op)
        top = self._buffer("top", dtype, node.kept)
        at = self._buffer("at", torch.int64, node.kept) if rest else node.out
        last, within = self._buffer("rest", dtype, node.kept), self._buffer("within", torch.int64, node.kept)
        builder = BodyBuilder()
        of_rows = builder.finish(self._load(builder, best, self.kept))
        if rest:
            yield self._over_rest(last, op)
            yield self._over_rest(within, node.op)
            rows = self._buffer("rows", dtype, node.kept)
            yield self._over_rows(rows, op, of_rows)
            yield Pointwise(top, node.kept, self._combined(op, rows, last), node.origin)
        else:
            yield self._over_rows(top, op, of_rows)
        yield self._over_rows(at, ReduceOp.MIN, self._row_of_best(best, turn, top))
        if rest:
            yield Pointwise(node.out, node.kept, self._first_of(at, last, within, top), node.origin)

    def _over_turns(self, out: Buffer, op: ReduceOp) -> Reduction:
        turns = tuple([self.turn if axis is self.axis else axis for axis in self.node.reduced])
        body = self._body(self.turn.symbol * self.rows + self.row.symbol)
        return Reduction(out, self.kept, turns, op, body, self.node.origin)

    def _over_rows(self, out: Buffer, op: ReduceOp, body: LoopBody) -> Reduction:
        return Reduction(out, self.node.kept, (self.row,), op, body, self.node.origin)

    def _over_rest(self, out: Buffer, op: ReduceOp) -> Reduction:
        turns = tuple([self.left if axis is self.axis else axis for axis in self.node.reduced])
        return Reduction(out, self.node.kept, turns, op, self._body(self.left.symbol + self.done), self.node.origin)

    def _buffer(self, use: str, dtype: torch.dtype, axes: tuple[Axis, ...]) -> Buffer:
        spec = replace(self.node.out.spec, dtype=dtype).with_sizes(tuple([axis.size for axis in axes]))
        return Buffer(f"{self.node.out.name}_{use}", spec)

    def _body(self, at: Int) -> LoopBody:
        """What is reduced, in row `at`."""
        builder = BodyBuilder()
        (value,) = self.node.body.run(Inline(builder, {self.axis.symbol: at}))
        return builder.finish(value)

    def _load(self, builder: BodyBuilder, buffer: Buffer, axes: tuple[Axis, ...]) -> int:
        return builder.load(buffer.name, tuple([axis.symbol for axis in axes]), buffer.spec.dtype)

    def _combined(self, op: ReduceOp, first: Buffer, second: Buffer) -> LoopBody:
        builder, dtype = BodyBuilder(), first.spec.dtype
        left, right = (self._load(builder, part, self.node.kept) for part in (first, second))
        both = builder.pointwise(PRIMS[COMBINE[op]], dtype, left, right)
        return builder.finish(builder.convert(both, self.node.out.spec.dtype if op is self.node.op else dtype))

    def _row_of_best(self, best: Buffer, turn: Buffer, top: Buffer) -> LoopBody:
        """The row that a part names, if its value is the best of all."""
        builder = BodyBuilder()
        value, index = (self._load(builder, part, self.kept) for part in (best, turn))
        start = builder.pointwise(PRIMS["mul"], torch.int64, index, builder.constant(self.rows, torch.int64))
        row = builder.pointwise(PRIMS["add"], torch.int64, start, builder.index(self.row.symbol, torch.int64))
        return builder.finish(self._if_best(builder, value, top, row))

    def _first_of(self, at: Buffer, last: Buffer, within: Buffer, top: Buffer) -> LoopBody:
        """The least of row `at` and that of the rest, if its value is the best of all."""
        builder = BodyBuilder()
        first, value, index = (self._load(builder, part, self.node.kept) for part in (at, last, within))
        row = builder.pointwise(PRIMS["add"], torch.int64, index, builder.constant(self.done, torch.int64))
        second = self._if_best(builder, value, top, row)
        return builder.finish(builder.pointwise(PRIMS["minimum"], torch.int64, first, second))

    def _if_best(self, builder: BodyBuilder, value: int, top: Buffer, row: int) -> int:
        """A NaN is the best of all; it makes `top` NaN."""
        same = builder.pointwise(PRIMS["eq"], torch.bool, value, self._load(builder, top, self.node.kept))
        if top.spec.dtype.is_floating_point:
            nan = builder.pointwise(PRIMS["isnan"], torch.bool, value)
            same = builder.pointwise(PRIMS["bitwise_or"], torch.bool, same, nan)
        none = builder.constant(NO_INDEX, torch.int64)
        return builder.pointwise(PRIMS["where"], torch.int64, same, row, none)
