"""Bounds of integers that a body computes, as far as constants bound them.

    v0 = load x[i0];  v1 = minimum(v0, i64(9));  v2 = maximum(v1, i64(0))          bounds of v2: (0, 9)

An index whose bounds are those of its dimension needs no check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kiln.loops.body.body import BodyOp, Compute, Const

Bounds = tuple[int | None, int | None]
"""The least and the largest value; None where it is not known."""

ANY: Bounds = (None, None)
DEEPEST = 6
"""How far operands are followed: each step may double their number."""


def bounds_of(ops: Sequence[BodyOp], position: int, depth: int = 0) -> Bounds:
    """Of the integer that `ops[position]` computes."""
    op = ops[position]
    if op.dtype.is_floating_point or op.dtype.is_complex or depth > DEEPEST:
        return ANY
    if isinstance(op, Const):
        return int(op.value), int(op.value)
    if not isinstance(op, Compute) or op.op.name not in ("minimum", "maximum", "where"):
        return ANY
    operands = op.operands[1:] if op.op.name == "where" else op.operands
    lows, highs = zip(*[bounds_of(ops, operand, depth + 1) for operand in operands], strict=True)
    low = extreme(max, lows) if op.op.name == "maximum" else extreme(min, lows, all_known=True)
    high = extreme(min, highs) if op.op.name == "minimum" else extreme(max, highs, all_known=True)
    return low, high


def extreme(
    choose: Callable[[Iterable[int]], int], values: Sequence[int | None], *, all_known: bool = False
) -> int | None:
    """The least or largest of the known values; None without one, or if `all_known` are needed and one is not."""
    known = [value for value in values if value is not None]
    return None if not known or (all_known and len(known) < len(values)) else choose(known)
