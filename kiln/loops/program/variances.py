"""Recognises the sum of squared deviations from a mean.

    total[i0] = sum over (i1: n): load x[i0, i1]
    d = sub(load x[i0, i1], mul(load total[i0], 1/n))         squares[i0] = sum over (i1: n): mul(d, d)

Loops that compute the mean or the deviation in between are looked through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch

from kiln.loops.body.analyses import result_dtypes, without_dead
from kiln.loops.body.body import BodyOp, Compute, Const, Index, Load, LoopBody
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import points
from kiln.loops.program.analyses import reads
from kiln.loops.program.nodes import Pointwise, ReduceOp, Reduction
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol, substituted
from kiln.tensor.size_hint import size_hint


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
