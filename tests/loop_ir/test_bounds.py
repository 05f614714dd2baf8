"""Bounds of integers: an index is read without a check where they say that it fits."""

from __future__ import annotations

import itertools
import random

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import BodyOp, Compute, Const, Load
from kiln.loops.body.bounds import DEEPEST, bounds_of

NAMES = ("minimum", "maximum", "where", "add")
LOADED = range(-4, 12)


def made(name: str, *operands: int, dtype: torch.dtype = torch.int64) -> Compute:
    return Compute(PRIMS[name], operands, dtype)


def drawn(draw: random.Random) -> list[BodyOp]:
    """Two loads, a condition, constants, and operators on them."""
    loads = [Load(name, (), torch.int64) for name in "xy"]
    ops: list[BodyOp] = [*loads, made("lt", 0, 1, dtype=torch.bool)]
    ops += [Const(draw.randrange(-2, 9), torch.int64) for _ in range(3)]
    for _ in range(4):
        name = draw.choice(NAMES)
        operands = draw.choices([position for position in range(len(ops)) if position != 2], k=2)
        ops.append(made(name, *((2,) if name == "where" else ()), *operands))
    return ops


def values(ops: list[BodyOp], x: int, y: int) -> list[int]:
    found: list[int] = []
    for op in ops:
        if isinstance(op, Load):
            found.append(x if op.buffer == "x" else y)
        elif isinstance(op, Const):
            found.append(int(op.value))
        else:
            assert isinstance(op, Compute)
            given = [found[operand] for operand in op.operands]
            results = {
                "minimum": min(given), "maximum": max(given), "add": sum(given), "lt": int(given[0] < given[1]),
                "where": given[1] if given[0] else given[-1],
            }  # fmt: skip
            found.append(results[op.op.name])
    return found


def test_every_value_is_within_its_bounds() -> None:
    draw, known = random.Random(0), 0
    for _ in range(300):
        ops = drawn(draw)
        seen = list(zip(*[values(ops, x, y) for x, y in itertools.product(LOADED, repeat=2)], strict=True))
        for position, found in enumerate(seen):
            low, high = bounds_of(ops, position)
            assert low is None or low <= min(found), ops[: position + 1]
            assert high is None or high >= max(found), ops[: position + 1]
            known += (low is not None) + (high is not None)
    assert known > 1000


def test_bounds_that_are_known() -> None:
    x, two, seven = Load("x", (), torch.int64), Const(2, torch.int64), Const(7, torch.int64)
    ops = [x, two, seven, made("minimum", 0, 2), made("maximum", 3, 1), made("lt", 0, 1, dtype=torch.bool)]
    ops += [made("where", 5, 1, 2), made("where", 5, 0, 2), made("minimum", 1, 2), made("maximum", 1, 2)]
    wanted = [(None, None), (2, 2), (7, 7), (None, 7), (2, 7), (None, None), (2, 7), (None, None), (2, 2), (7, 7)]
    assert [bounds_of(ops, position) for position in range(len(ops))] == wanted


def test_floats_and_long_chains_have_none() -> None:
    number, half = Const(2, torch.int64), Const(0.5, torch.float32)
    assert bounds_of([half], 0) == (None, None)
    ops: list[BodyOp] = [number, *[made("minimum", position, position) for position in range(DEEPEST + 1)]]
    assert bounds_of(ops, DEEPEST) == (2, 2) and bounds_of(ops, DEEPEST + 1) == (None, None)
