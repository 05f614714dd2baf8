"""Shift variances: a variance of more elements than fit on a chip reads them once, on a GPU.

    total[i1]   = sum over (i0: 65536): x[i0, i1]
    squares[i1] = sum over (i0: 65536): square(x[i0, i1] - total[i1] / 65536)

    sample[i1]  = sum over (s: 512): x[127*s + 319, i1]
    away        = x[i0, i1] - sample[i1] / 512
    first[i1], second[i1] = sum over (i0: 65536): away, square(away)                    one loop
    total[i1]   = first[i1] + 65536 * (sample[i1] / 512)
    squares[i1] = max(second[i1] - first[i1] * (first[i1] / 65536), 0)

The further the mean of the sample is from that of all, the more digits the difference loses. Of n elements, s in the
sample, its square is at most n/s variances away, and 1/s where the sample is like the others. With s = 2 * sqrt(n) a
single element far away costs at most a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import final

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.analyses import accesses, result_dtypes
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import Axis, points, stride_along
from kiln.loops.program.analyses import memory_of, node_axes, program_buffers, written
from kiln.loops.program.column_layout import LAUNCH_BYTES, ColumnLayout, column_layout, rows_together
from kiln.loops.program.nodes import Buffer, LoopNode, LoopProgram, Pointwise, ReduceOp, Reduction
from kiln.loops.program.variances import Variance, find_variance
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol, substituted, symbol
from kiln.tensor.size_hint import size_hint

LEAST_BYTES = 1 << 24
"""With fewer the cache holds them for the second pass, and further launches take as long."""
COLUMN_POINTS, ROW_POINTS = 1 << 13, 1 << 15
"""Elements that a program holds in registers: of neighbouring columns, of a row."""
LINE_BYTES = 128
NEIGHBOURS = 8
"""Elements of a row that are read at once."""


@final
@dataclass(frozen=True)
class ShiftVariances:
    """`least_bytes`: what is worth further launches, each of which costs `launch_bytes`."""

    least_bytes: int = LEAST_BYTES
    launch_bytes: int = LAUNCH_BYTES
    name = "shift-variances"

    def run(self, program: LoopProgram, target: Target) -> tuple[LoopProgram, int]:
        nodes, changes = list(program.nodes), 0
        for variance in _variances(program):
            buffers = program_buffers(program)
            strides = _strides(variance, buffers)
            if strides is None or size_hint(points(node_axes(variance.squares))) * 4 < self.least_bytes:
                continue
            layout = column_layout(replace(variance.squares, body=variance.value), buffers)
            rows = 1 if layout is None else rows_together(layout, target, self.launch_bytes)
            shifted = _ShiftedVariance(variance, strides, layout, rows)
            nodes[nodes.index(variance.total) : nodes.index(variance.total) + 1] = shifted.totals()
            nodes[nodes.index(variance.squares) : nodes.index(variance.squares) + 1] = shifted.squares()
            changes += 1
        return (replace(program, nodes=tuple(nodes)) if changes else program), changes


def _variances(program: LoopProgram) -> Iterator[Variance]:
    """The variances of a program, one per sum, of memory that nothing writes in between."""
    buffers = program_buffers(program)
    totals: dict[str, Reduction] = {}
    loops: dict[str, Pointwise] = {}
    places: dict[str, int] = {}
    for place, node in enumerate(program.nodes):
        if isinstance(node, Reduction) and (found := find_variance(node, totals, loops)) is not None:
            between = program.nodes[places[found.total.out.name] : place]
            memory = {memory_of(load.buffer, buffers) for load in accesses(found.value)}
            if not any(memory_of(name, buffers) in memory for other in between for name in written(other)):
                del totals[found.total.out.name]
                yield found
        if isinstance(node, Reduction) and node.op is ReduceOp.SUM and node.out.base is None:
            totals[node.out.name], places[node.out.name] = node, place
        elif isinstance(node, Pointwise) and node.out.base is None:
            loops[node.out.name] = node


def _strides(variance: Variance, buffers: Mapping[str, Buffer]) -> Mapping[Symbol, int] | None:
    """The strides of the largest argument; None if a column or row of it fits into registers."""
    node = variance.squares
    strides: dict[Symbol, int] = {}
    itemsize = 4
    for load in accesses(variance.value):
        spec = buffers[load.buffer].spec
        found = {axis.symbol: stride_along(spec, load.index, axis.symbol) for axis in node_axes(node)}
        known = {name: stride for name, stride in found.items() if isinstance(stride, int) and stride != 0}
        if load.conditional or not all(isinstance(stride, int) for stride in found.values()):
            return None
        if len(known) > len(strides):
            strides, itemsize = known, spec.dtype.itemsize
    neighbours = next((name for name, stride in strides.items() if stride == 1), None)
    if neighbours is None or not all(axis.symbol in strides for axis in node.reduced):
        return None
    in_rows = any(axis.symbol is neighbours for axis in node.reduced)
    most = ROW_POINTS if in_rows else COLUMN_POINTS // min(LINE_BYTES // itemsize, 64)
    return strides if variance.count > most else None


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """Sums over the axes `over`, at which the reduced axes are `at`: of a sample, of deviations from its mean, of their
    squares, and of all."""

    kept: tuple[Axis, ...]
    over: tuple[Axis, ...]
    at: Mapping[Symbol, Int]
    sampled: int
    sample: Buffer
    first: Buffer
    second: Buffer
    total: Buffer
    count: int


@final
class _ShiftedVariance:
    """The nodes in place of the two reductions of a variance: `rows` of its columns are one, each with its sample."""

    def __init__(
        self, variance: Variance, strides: Mapping[Symbol, int], layout: ColumnLayout | None, rows: int
    ) -> None:
        self.variance, self.node, self.strides = variance, variance.squares, strides
        (self.dtype,) = result_dtypes(variance.value)
        self.rest: _Part | None = None
        if layout is None or rows == 1:
            self.rows: tuple[Axis, ...] = ()
            self.part = self._part("", self.node.kept, self.node.reduced, {}, variance.total.out)
            return
        row, turn, left = layout.in_rows(rows)
        split = len(self.node.kept) - layout.inside
        kept, axis = (*self.node.kept[:split], row, *self.node.kept[split:]), layout.axis
        self.rows = (row,)
        self.part = self._of_rows("", kept, axis, turn, turn.symbol * rows + row.symbol)
        if left.size:
            self.rest = self._of_rows("rest_", self.node.kept, axis, left, left.symbol + layout.rows // rows * rows)

    def _of_rows(self, prefix: str, kept: tuple[Axis, ...], axis: Axis, turn: Axis, at: Int) -> _Part:
        over = tuple([turn if reduced is axis else reduced for reduced in self.node.reduced])
        return self._part(prefix, kept, over, {axis.symbol: at}, self._buffer(f"{prefix}total", kept))

    def _part(
        self, prefix: str, kept: tuple[Axis, ...], over: tuple[Axis, ...], at: Mapping[Symbol, Int], total: Buffer
    ) -> _Part:
        sample, first, second = (self._buffer(prefix + use, kept) for use in ("sample", "first", "second"))
        sampled = size_hint(points(_sample(over, self._along(over))[0]))
        return _Part(kept, over, at, sampled, sample, first, second, total, size_hint(points(over)))

    def _along(self, over: Sequence[Axis]) -> Mapping[Symbol, int]:
        """The strides of axes that stand for the reduced ones."""
        pairs = zip(over, self.node.reduced, strict=True)
        return {axis.symbol: self.strides[reduced.symbol] for axis, reduced in pairs}

    def totals(self) -> Iterator[LoopNode]:
        """The sums of the parts, and the sum of all."""
        yield from self._sums(self.part)
        if self.rest is not None:
            yield from self._sums(self.rest)
        if self.rows:
            yield from self._over_all(self.variance.total.out, "whole", self._total)

    def squares(self) -> Iterator[LoopNode]:
        """The squared deviations from the mean of all; rounding may make their sum negative."""
        yield from self._over_all(self.node.out, "squares", self._squares)

    def _over_all(self, out: Buffer, use: str, term: Callable[[BodyBuilder, _Part], int]) -> Iterator[LoopNode]:
        """The sum of `term` over the parts and the rest."""
        whole = out if self.rest is None else self._buffer(use, self.node.kept)
        builder = BodyBuilder()
        body = builder.finish(term(builder, self.part))
        if self.rows:
            yield Reduction(whole, self.node.kept, self.rows, ReduceOp.SUM, body, self.node.origin)
        else:
            yield Pointwise(whole, self.node.kept, body, self.node.origin)
        if self.rest is not None:
            builder = BodyBuilder()
            index = tuple([axis.symbol for axis in self.node.kept])
            both = builder.load(whole.name, index, self.dtype), term(builder, self.rest)
            yield Pointwise(out, self.node.kept, builder.finish(self._compute(builder, "add", *both)), self.node.origin)

    def _sums(self, part: _Part) -> Iterator[LoopNode]:
        axes, sample_at = _sample(part.over, self._along(part.over))
        at = part.at or {axis.symbol: axis.symbol for axis in self.node.reduced}
        builder = BodyBuilder()
        moved = {name: substituted(index, sample_at) for name, index in at.items()}
        yield self._sum(part.sample, part.kept, axes, builder, self._value(builder, {**sample_at, **moved}))
        for out, power in ((part.first, 1), (part.second, 2)):
            builder = BodyBuilder()
            away = self._compute(builder, "sub", self._value(builder, part.at), self._sample_mean(builder, part))
            result = away if power == 1 else self._compute(builder, "mul", away, away)
            yield self._sum(out, part.kept, part.over, builder, result)
        builder = BodyBuilder()
        shift = self._compute(builder, "mul", self._sample_mean(builder, part), self._number(builder, part.count))
        total = self._compute(builder, "add", self._load(builder, part, part.first), shift)
        yield Pointwise(part.total, part.kept, builder.finish(total), self.node.origin)

    def _total(self, builder: BodyBuilder, part: _Part) -> int:
        return self._load(builder, part, part.total)

    def _squares(self, builder: BodyBuilder, part: _Part) -> int:
        """Squared deviations of a part from the mean of all, from those from the mean of its sample."""
        first, second = self._load(builder, part, part.first), self._load(builder, part, part.second)
        if not self.rows:
            moved = self._compute(builder, "div", first, self._number(builder, part.count))
            squares = self._compute(builder, "sub", second, self._compute(builder, "mul", first, moved))
            return self._compute(builder, "maximum", squares, self._number(builder, 0))
        index = tuple([axis.symbol for axis in self.node.kept])
        total = builder.load(self.variance.total.out.name, index, self.dtype)
        mean = self._compute(builder, "div", total, self._number(builder, self.variance.count))
        away = self._compute(builder, "sub", self._sample_mean(builder, part), mean)
        moved = self._compute(builder, "mul", away, self._number(builder, part.count))
        moved = self._compute(builder, "add", self._compute(builder, "add", first, first), moved)
        return self._compute(builder, "add", second, self._compute(builder, "mul", away, moved))

    def _sample_mean(self, builder: BodyBuilder, part: _Part) -> int:
        return self._compute(
            builder, "div", self._load(builder, part, part.sample), self._number(builder, part.sampled)
        )

    def _sum(
        self, out: Buffer, kept: tuple[Axis, ...], over: tuple[Axis, ...], builder: BodyBuilder, result: int
    ) -> Reduction:
        return Reduction(out, kept, over, ReduceOp.SUM, builder.finish(result), self.node.origin)

    def _value(self, builder: BodyBuilder, at: Mapping[Symbol, Int]) -> int:
        (value,) = self.variance.value.run(Inline(builder, at))
        return value

    def _buffer(self, use: str, axes: tuple[Axis, ...]) -> Buffer:
        out = self.node.out
        spec = replace(out.spec, dtype=self.dtype).with_sizes(tuple([axis.size for axis in axes]))
        return Buffer(f"{out.name}_{use}", spec)

    def _load(self, builder: BodyBuilder, part: _Part, buffer: Buffer) -> int:
        return builder.load(buffer.name, tuple([axis.symbol for axis in part.kept]), self.dtype)

    def _number(self, builder: BodyBuilder, value: int) -> int:
        return builder.constant(float(value), self.dtype)

    def _compute(self, builder: BodyBuilder, op: str, *operands: int) -> int:
        return builder.pointwise(PRIMS[op], self.dtype, *operands)


def _sample(reduced: Sequence[Axis], strides: Mapping[Symbol, int]) -> tuple[tuple[Axis, ...], Mapping[Symbol, Int]]:
    """Axes of the sample and where in the reduced axes they are: spread, by odd steps, as what repeats does so by even
    ones; a few neighbours of a row."""
    room = 2 * isqrt(size_hint(points(reduced)))
    found: list[Axis] = []
    at: dict[Symbol, Int] = {}
    for axis in sorted(reduced, key=lambda axis: -strides[axis.symbol]):
        size, name = size_hint(axis.size), axis.symbol.name
        run = min(NEIGHBOURS, room, size) if strides[axis.symbol] == 1 else 1
        count = max(min(size, room) // run, 1)
        step = max(size // count - (size // count + 1) % 2, 1)
        room = max(room // (count * run), 1)
        at[axis.symbol] = (size - (count - 1) * step - run) // 2
        for points_, stride, suffix in ((count, step, "s"), (run, 1, "n")):
            if points_ > 1:
                found.append(Axis(symbol(f"{name}_{suffix}"), points_))
                at[axis.symbol] += found[-1].symbol * stride
    return tuple(found) or (Axis(symbol("s"), 1),), at
