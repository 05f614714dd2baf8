"""Questions about bodies: what they load, compute and use; which ops are dead.

accesses(body)       (BufferAccess("x", (i0, i1), f32, conditional=False), ...)
flops(body)          arithmetic operations per point
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.body import BodyOp, Compute, Index, IndexValue, Indirect, Load, LoopBody, Random, Test
from kiln.loops.body.indexing import symbols_of
from kiln.support.records import dataclass
from kiln.symbolic import Symbol


@final
@dataclass(frozen=True, slots=True)
class BufferAccess:
    """One load or store; `conditional` under a mask."""

    buffer: str
    index: Index
    dtype: torch.dtype
    conditional: bool = False


def accesses(body: LoopBody) -> tuple[BufferAccess, ...]:
    loads = (op for op in body.ops if isinstance(op, Load))
    return tuple(BufferAccess(op.buffer, op.index, op.dtype, op.mask is not None) for op in loads)


def result_dtypes(body: LoopBody) -> tuple[torch.dtype, ...]:
    return tuple(body.ops[position].dtype for position in body.results)


def flops(body: LoopBody) -> int:
    """Arithmetic operations per point; a random number counts 10."""
    total = 0
    for op in body.ops:
        total += op.op.flops if isinstance(op, Compute) else 10 if isinstance(op, Random) else 0
    return total


def free_symbols(body: LoopBody) -> frozenset[Symbol]:
    """Loop and size symbols: all but those that the body binds."""
    used = frozenset().union(*(symbols_used(op) for op in body.ops))
    return used - bound_symbols(body)


def bound_symbols(body: LoopBody) -> frozenset[Symbol]:
    """Symbols that stand for data."""
    return frozenset(op.symbol for op in body.ops if isinstance(op, Indirect))


def operands_of(op: BodyOp) -> tuple[int, ...]:
    match op:
        case Compute(_, operands, _):
            return operands
        case Load(mask=int() as mask):
            return (mask,)
        case Indirect(operand=operand):
            return (operand,)
        case Random(seed=seed):
            return (seed,)
    return ()


def symbols_used(op: BodyOp) -> frozenset[Symbol]:
    """Symbols in the index expressions of `op`."""
    match op:
        case Load(index=index):
            return symbols_of(*index)
        case IndexValue(expr=expr) | Random(counter=expr) | Indirect(size=expr):
            return symbols_of(expr)
        case Test(relation):
            return relation.free_symbols()
    return frozenset()


def moved(op: BodyOp, positions: Mapping[int, int] | Sequence[int]) -> BodyOp:
    """`op` with its operands at their new positions."""
    match op:
        case Compute(prim, operands, dtype):
            return Compute(prim, tuple(positions[operand] for operand in operands), dtype)
        case Load(mask=int() as mask):
            return replace(op, mask=positions[mask])
        case Indirect(operand=operand):
            return replace(op, operand=positions[operand])
        case Random(seed=seed):
            return replace(op, seed=positions[seed])
    return op


def live_positions(ops: Sequence[BodyOp], results: Iterable[int], used: frozenset[Symbol] = frozenset()) -> set[int]:
    """The positions that `results` and the bound symbols in `used` are computed from."""
    needed, symbols = set(results), set(used)
    for position in range(len(ops) - 1, -1, -1):
        op = ops[position]
        if isinstance(op, Indirect) and op.symbol in symbols:
            needed.add(position)
        if position in needed:
            needed.update(operands_of(op))
            symbols |= symbols_used(op)
    return needed


def without_dead(body: LoopBody, used: frozenset[Symbol] = frozenset()) -> LoopBody:
    """`body` without dead ops. An `Indirect` lives if its symbol is used, also by indices of effects (`used`)."""
    needed = live_positions(body.ops, body.results, used)
    if len(needed) == len(body.ops):
        return body
    positions = {old: new for new, old in enumerate(sorted(needed))}
    ops = tuple(moved(body.ops[old], positions) for old in sorted(needed))
    return LoopBody(ops, tuple(positions[position] for position in body.results))
