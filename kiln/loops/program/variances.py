"""Recognises the sum of squared deviations from a mean, and how the reduction is cut into parts that fit on a chip.

    total[i0] = sum over (i1: n): load x[i0, i1]
    d = sub(load x[i0, i1], mul(load total[i0], 1/n))         squares[i0] = sum over (i1: n): mul(d, d)

Loops that compute the mean or the deviation in between are looked through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import final

import torch

from kiln.loops.body.analyses import accesses, result_dtypes, without_dead
from kiln.loops.body.body import BodyOp, Compute, Const, Index, Load, LoopBody
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import Axis, points, stride_along, substituted
from kiln.loops.program.analyses import reads
from kiln.loops.program.nodes import Buffer, Pointwise, ReduceOp, Reduction
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol, symbol
from kiln.tensor.size_hint import size_hint

COLUMN_POINTS, ROW_POINTS = 8192, 1 << 15
"""Elements that a program holds in registers: of neighbouring columns, of a row."""
LINE_BYTES, ACCESS_BYTES = 128, 16


@final
@dataclass(frozen=True, slots=True)
class Variance:
    """`total` and `squares`: the two reductions; `value`: what they reduce, over the axes of `squares`."""

    total: Reduction
    squares: Reduction
    value: LoopBody

    @property
    def count(self) -> int:
        return size_hint(points(self.squares.reduced))


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """Parts numbered by `dims`, over the axes `within` each: the reduced axes are `at`. `rest`: points in no part, over
    one axis, which is `rest_at` there. `place`: where `dims` stand among the kept axes, as in memory."""

    dims: tuple[Axis, ...]
    within: tuple[Axis, ...]
    at: Mapping[Symbol, Int]
    rest: tuple[Axis, ...] = ()
    rest_at: Mapping[Symbol, Int] = field(default_factory=dict)
    place: int = 0


def find_variance(
    squares: Reduction, totals: Mapping[str, Reduction], loops: Mapping[str, Pointwise]
) -> Variance | None:
    """The variance that `squares` belongs to. `totals`: sums before it; `loops`: pointwise nodes before it."""
    if squares.op is not ReduceOp.SUM or not all(isinstance(axis.size, int) for axis in squares.reduced):
        return None
    body = _looked_through(squares.body, totals, loops)
    product = body.ops[body.results[0]]
    deviation = _operand(product, "mul", body, same=True)
    if deviation is None or not isinstance(deviation, Compute) or deviation.op.name != "sub":
        return None
    value, mean = deviation.operands
    load = _summed(body, mean, size_hint(points(squares.reduced)))
    total = None if load is None else totals.get(load.buffer)
    ones = {axis.symbol: 0 for axis in squares.kept if axis.size == 1}
    kept = [ones.get(axis.symbol, axis.symbol) for axis in squares.kept]
    if load is None or total is None or [substituted(at, ones) for at in load.index] != kept:
        return None
    if _sizes(total) != _sizes(squares) or total.out.spec.dtype != squares.out.spec.dtype:
        return None
    pairs = zip((*total.kept, *total.reduced), (*squares.kept, *squares.reduced), strict=True)
    same = _with_indices(total.body, {own.symbol: ones.get(other.symbol, other.symbol) for own, other in pairs})
    found = without_dead(_with_indices(LoopBody(body.ops, (value,)), ones))
    equal = without_dead(same) == found and result_dtypes(found) == (squares.out.spec.dtype,)
    return Variance(total, squares, found) if equal else None


def _with_indices(body: LoopBody, values: Mapping[Symbol, Int]) -> LoopBody:
    builder = BodyBuilder()
    return builder.finish(*body.run(Inline(builder, values)))


def _sizes(node: Reduction) -> tuple[list[Int], list[Int]]:
    return [axis.size for axis in node.kept], [axis.size for axis in node.reduced]


def _looked_through(body: LoopBody, totals: Mapping[str, Reduction], loops: Mapping[str, Pointwise]) -> LoopBody:
    """`body` with what pointwise nodes make of sums in place of the loads of them."""
    builder = BodyBuilder()

    def on_load(buffer: str, index: Index, dtype: torch.dtype, mask: int | None) -> int | None:
        loop = loops.get(buffer)
        if loop is None or mask is not None or not _reads_any(loop, totals, loops) or loop.out.spec.dtype != dtype:
            return None
        values = {axis.symbol: at for axis, at in zip(loop.axes, index, strict=True)}
        (position,) = loop.body.run(Inline(builder, values, on_load))
        return builder.convert(position, dtype)

    (result,) = body.run(Inline(builder, {}, on_load))
    return builder.finish(result)


def _reads_any(loop: Pointwise, totals: Mapping[str, Reduction], loops: Mapping[str, Pointwise]) -> bool:
    """Does the loop read a sum, or a loop that reads nothing else?"""
    found = {load.buffer for load in reads(loop)}
    return bool(found & totals.keys()) or any(
        {load.buffer for load in reads(loops[name])} <= totals.keys() for name in found & loops.keys()
    )


def _operand(op: BodyOp, name: str, body: LoopBody, *, same: bool) -> BodyOp | None:
    """The first operand of `op`, if that is a `name`; `same`: of equal operands."""
    if not isinstance(op, Compute) or op.op.name != name or (same and op.operands[0] != op.operands[1]):
        return None
    return body.ops[op.operands[0]]


def _summed(body: LoopBody, mean: int, count: int) -> Load | None:
    """The load of the sum, if the value at `mean` is that sum divided by `count`."""
    op = body.ops[mean]
    if not isinstance(op, Compute) or op.op.name not in ("mul", "div"):
        return None
    load, by = (body.ops[operand] for operand in op.operands)
    if not isinstance(load, Load) or load.mask is not None or not isinstance(by, Const):
        return None
    inverse = float(by.value) if op.op.name == "mul" else 1 / float(by.value) if by.value else 0.0
    return load if abs(inverse * count - 1) < 1e-6 else None


def parts_of(variance: Variance, buffers: Mapping[str, Buffer]) -> Parts | None:
    """Parts that fit into registers; None where the whole does, or where memory is not read along axes."""
    node = variance.squares
    strides: dict[Symbol, int] = {}
    neighbours: Symbol | None = None
    itemsize = 4
    for load in accesses(variance.value):
        spec = buffers[load.buffer].spec
        found = {axis: stride_along(spec, load.index, axis.symbol) for axis in (*node.kept, *node.reduced)}
        if load.conditional or not all(isinstance(stride, int) for stride in found.values()):
            return None
        if sum(stride != 0 for stride in found.values()) > len(strides):
            strides = {axis.symbol: int(stride) for axis, stride in found.items() if stride}  # type: ignore[arg-type]
            neighbours = next((name for name, stride in strides.items() if stride == 1), None)
            itemsize = spec.dtype.itemsize
    if neighbours is None or not all(axis.symbol in strides for axis in node.reduced):
        return None
    in_rows = any(axis.symbol is neighbours for axis in node.reduced)
    most = ROW_POINTS if in_rows else COLUMN_POINTS // min(LINE_BYTES // itemsize, 64)
    if variance.count <= most:
        return None
    if len(node.reduced) > 1:
        return _parts_of_axes(sorted(node.reduced, key=lambda axis: strides[axis.symbol]), most)
    (axis,) = node.reduced
    if in_rows:
        return _blocks(axis, COLUMN_POINTS)
    below = [kept.symbol for kept in node.kept if strides.get(kept.symbol, 0) < strides[axis.symbol]]
    place = len(node.kept) - len(below)
    parts = _interleaved(axis, most, strides[axis.symbol] * itemsize % ACCESS_BYTES == 0)
    return replace(parts, place=place if [kept.symbol for kept in node.kept[place:]] == below else 0)


def _parts_of_axes(ascending: list[Axis], most: int) -> Parts | None:
    """The inner axes that fit, and of the next one as many points as divide it and fit; the others number the parts."""
    dims: list[Axis] = []
    within: list[Axis] = []
    at: dict[Symbol, Int] = {}
    inside, full = 1, False
    for axis in ascending:
        size = size_hint(axis.size)
        fits = 1 if full else max(count for count in range(1, size + 1) if size % count == 0 and inside * count <= most)
        full, inside = fits < size, inside * fits
        block, point = Axis(symbol(f"{axis.symbol}_b"), size // fits), Axis(symbol(f"{axis.symbol}_p"), fits)
        dims += [block] if fits < size else []
        within += [point] if fits > 1 else []
        at[axis.symbol] = (block.symbol * fits if fits < size else 0) + (point.symbol if fits > 1 else 0)
    worth = inside * SMALLEST_SHARE >= most
    return Parts(tuple(reversed(dims)), tuple(reversed(within)), at) if worth else None


SMALLEST_SHARE = 16
"""A part has at least this share of the points that fit."""


def _blocks(axis: Axis, most: int) -> Parts:
    """Neighbours of a row: without a rest if a few less need none."""
    size = size_hint(axis.size)
    points_of_part = next((count for count in range(most, most // 2, -8) if size % count == 0), most)
    block, point = Axis(symbol(f"{axis.symbol}_b"), size // points_of_part), Axis(symbol("p"), points_of_part)
    done = size - size % points_of_part
    at = {axis.symbol: block.symbol * points_of_part + point.symbol}
    return Parts((block,), (point,), at, *_rest(axis, done))


def _interleaved(axis: Axis, most: int, aligned: bool) -> Parts:
    """Every R-th row of columns: R rows in a row start at multiples of an access, also where one does not."""
    size = size_hint(axis.size)
    least = -(-size // most)
    step = 1 if aligned else ACCESS_BYTES // 2
    least = -(-least // step) * step
    count = next((rows for rows in range(least, 2 * least, step) if size % rows == 0), least)
    turns = size // count
    row, turn = Axis(symbol(f"{axis.symbol}_r"), count), Axis(symbol(f"{axis.symbol}_t"), turns)
    return Parts((row,), (turn,), {axis.symbol: turn.symbol * count + row.symbol}, *_rest(axis, turns * count))


def _rest(axis: Axis, done: int) -> tuple[tuple[Axis, ...], Mapping[Symbol, Int]]:
    """The points from number `done` on."""
    left = Axis(symbol(f"{axis.symbol}_u"), size_hint(axis.size) - done)
    return ((left,), {axis.symbol: left.symbol + done}) if left.size else ((), {})


def reads_of(value: LoopBody) -> Iterable[str]:
    """The buffers that a body reads."""
    return dict.fromkeys(load.buffer for load in accesses(value))
