"""Split variances: a variance of more elements than fit on a chip reads them once, in parts, on a GPU.

    total[i1]   = sum over (i0: 65536): x[i0, i1]
    squares[i1] = sum over (i0: 65536): square(x[i0, i1] - total[i1] / 65536)

    part[r, i1] = sum over (t: 256): x[256*t + r, i1]          one kernel, in registers
    away        = x[256*t + r, i1] - part[r, i1] / 256
    first[r, i1], second[r, i1] = sum over (t: 256): away, square(away)
    total[i1]   = sum over (r: 256): part[r, i1]
    e           = part[r, i1] / 256 - total[i1] / 65536
    squares[i1] = sum over (r: 256): second[r, i1] + e * (2 * first[r, i1] + 256 * e)

The formula is that of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979. `first` would be zero but for the rounding of the mean of the part; with it the result is as accurate
as that of two passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.analyses import result_dtypes
from kiln.loops.body.body import LoopBody
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import Axis, points
from kiln.loops.program.analyses import memory_of, node_axes, program_buffers, written
from kiln.loops.program.nodes import Buffer, LoopNode, LoopProgram, Pointwise, ReduceOp, Reduction
from kiln.loops.program.variances import Parts, Variance, find_variance, parts_of, reads_of
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol
from kiln.tensor.size_hint import size_hint

LEAST_BYTES = 1 << 24
"""With fewer the cache holds them for the second pass, and further launches take as long."""


@final
@dataclass(frozen=True)
class SplitVariances:
    """`least_bytes`: what is worth further launches."""

    least_bytes: int = LEAST_BYTES
    name = "split-variances"

    def run(self, program: LoopProgram, target: Target) -> tuple[LoopProgram, int]:
        nodes, changes = list(program.nodes), 0
        for variance in _variances(program):
            parts = parts_of(variance, program_buffers(program))
            if parts is None or self._bytes(variance) < self.least_bytes:
                continue
            split = _SplitVariance(variance, parts)
            nodes[nodes.index(variance.total) : nodes.index(variance.total) + 1] = split.totals()
            nodes[nodes.index(variance.squares) : nodes.index(variance.squares) + 1] = split.squares()
            changes += 1
        return (replace(program, nodes=tuple(nodes)) if changes else program), changes

    def _bytes(self, variance: Variance) -> int:
        return size_hint(points(node_axes(variance.squares))) * 4


def _variances(program: LoopProgram) -> Iterator[Variance]:
    """The variances of a program, one per sum, of memory that nothing writes in between."""
    buffers = program_buffers(program)
    totals: dict[str, Reduction] = {}
    loops: dict[str, Pointwise] = {}
    places: dict[str, int] = {}
    for place, node in enumerate(program.nodes):
        if isinstance(node, Reduction) and (found := find_variance(node, totals, loops)) is not None:
            between = program.nodes[places[found.total.out.name] : place]
            if not _overwrites(between, reads_of(found.value), buffers):
                del totals[found.total.out.name]
                yield found
        if isinstance(node, Reduction) and node.op is ReduceOp.SUM and node.out.base is None:
            totals[node.out.name], places[node.out.name] = node, place
        elif isinstance(node, Pointwise) and node.out.base is None:
            loops[node.out.name] = node


def _overwrites(nodes: Sequence[LoopNode], names: object, buffers: Mapping[str, Buffer]) -> bool:
    assert isinstance(names, dict)
    memory = {memory_of(name, buffers) for name in names}
    return any(memory_of(name, buffers) in memory for node in nodes for name in written(node))


@final
class _SplitVariance:
    """The nodes in place of the two reductions of a variance."""

    def __init__(self, variance: Variance, parts: Parts) -> None:
        self.variance, self.parts = variance, parts
        self.node = variance.squares
        (self.dtype,) = result_dtypes(variance.value)
        kept = self.node.kept
        self.kept = (*kept[: parts.place], *parts.dims, *kept[parts.place :])
        self.each = size_hint(points(parts.within))
        self.left = size_hint(points(parts.rest)) if parts.rest else 0
        self.part, self.first, self.second = (self._buffer(use, self.kept) for use in ("part", "first", "second"))
        self.rest, self.rest_first, self.rest_second = (
            self._buffer(use, kept) for use in ("rest", "rest_first", "rest_second")
        )

    def totals(self) -> Iterator[LoopNode]:
        """Sums and squared deviations of the parts; the sum of all."""
        total, parts = self.variance.total, self.parts
        yield from self._sums((self.part, self.first, self.second), self.kept, parts.within, parts.at)
        if not self.left:
            yield self._over_parts(total.out, self._loaded(self.part, self.kept))
            return
        rest = self.rest, self.rest_first, self.rest_second
        yield from self._sums(rest, self.node.kept, parts.rest, parts.rest_at)
        whole = self._buffer("whole", self.node.kept)
        yield self._over_parts(whole, self._loaded(self.part, self.kept))
        builder = BodyBuilder()
        both = [self._load(builder, buffer, self.node.kept) for buffer in (whole, self.rest)]
        yield self._pointwise(total.out, builder, self._compute(builder, "add", *both))

    def squares(self) -> Iterator[LoopNode]:
        """The squared deviations of all: those within parts, and those of the means of the parts."""
        builder = BodyBuilder()
        body = builder.finish(self._of_part(builder, (self.part, self.first, self.second), self.kept, self.each))
        if not self.left:
            yield self._over_parts(self.node.out, body)
            return
        whole = self._buffer("squares", self.node.kept)
        yield self._over_parts(whole, body)
        builder = BodyBuilder()
        of_rest = self.rest, self.rest_first, self.rest_second
        rest = self._of_part(builder, of_rest, self.node.kept, self.left)
        both = self._compute(builder, "add", self._load(builder, whole, self.node.kept), rest)
        yield self._pointwise(self.node.out, builder, both)

    def _sums(
        self, made: Sequence[Buffer], kept: tuple[Axis, ...], over: tuple[Axis, ...], at: Mapping[Symbol, Int]
    ) -> Iterator[Reduction]:
        """Of each part the sum, the sum of the deviations from its mean, and that of their squares."""
        total, first, second = made
        builder = BodyBuilder()
        yield self._sum(total, kept, over, builder, self._value(builder, at))
        for out, power in ((first, 1), (second, 2)):
            builder = BodyBuilder()
            mean = self._mean(builder, total, kept, size_hint(points(over)))
            away = self._compute(builder, "sub", self._value(builder, at), mean)
            yield self._sum(out, kept, over, builder, away if power == 1 else self._compute(builder, "mul", away, away))

    def _sum(
        self, out: Buffer, kept: tuple[Axis, ...], over: tuple[Axis, ...], builder: BodyBuilder, result: int
    ) -> Reduction:
        return Reduction(out, kept, over, ReduceOp.SUM, builder.finish(result), self.node.origin)

    def _of_part(self, builder: BodyBuilder, made: Sequence[Buffer], kept: tuple[Axis, ...], count: int) -> int:
        """Squared deviations of a part from the mean of all."""
        part, first, second = made
        mean = self._mean(builder, self.variance.total.out, self.node.kept, self.variance.count)
        away = self._compute(builder, "sub", self._mean(builder, part, kept, count), mean)
        twice = self._compute(builder, "mul", self._load(builder, first, kept), builder.constant(2.0, self.dtype))
        moved = self._compute(builder, "mul", away, builder.constant(float(count), self.dtype))
        moved = self._compute(builder, "mul", away, self._compute(builder, "add", twice, moved))
        return self._compute(builder, "add", self._load(builder, second, kept), moved)

    def _mean(self, builder: BodyBuilder, total: Buffer, kept: tuple[Axis, ...], count: int) -> int:
        return self._compute(
            builder, "div", self._load(builder, total, kept), builder.constant(float(count), self.dtype)
        )

    def _value(self, builder: BodyBuilder, at: Mapping[Symbol, Int]) -> int:
        (value,) = self.variance.value.run(Inline(builder, at))
        return value

    def _buffer(self, use: str, axes: tuple[Axis, ...]) -> Buffer:
        out = self.node.out
        spec = replace(out.spec, dtype=self.dtype).with_sizes(tuple([axis.size for axis in axes]))
        return Buffer(f"{out.name}_{use}", spec)

    def _loaded(self, buffer: Buffer, axes: tuple[Axis, ...]) -> LoopBody:
        builder = BodyBuilder()
        return builder.finish(self._load(builder, buffer, axes))

    def _load(self, builder: BodyBuilder, buffer: Buffer, axes: tuple[Axis, ...]) -> int:
        return builder.load(buffer.name, tuple([axis.symbol for axis in axes]), self.dtype)

    def _compute(self, builder: BodyBuilder, op: str, *operands: int) -> int:
        return builder.pointwise(PRIMS[op], self.dtype, *operands)

    def _over_parts(self, out: Buffer, body: LoopBody) -> Reduction:
        return Reduction(out, self.node.kept, self.parts.dims, ReduceOp.SUM, body, self.node.origin)

    def _pointwise(self, out: Buffer, builder: BodyBuilder, result: int) -> Pointwise:
        return Pointwise(out, self.node.kept, builder.finish(result), self.node.origin)
