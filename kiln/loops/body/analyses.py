"""Questions about bodies: what they load, compute and use.

accesses(body)       (BufferAccess("x", (i0, i1), f32, conditional=False), ...)
flops(body)          arithmetic operations per point
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from kiln.loops.body.body import Compute, Index, Indirect, Load, LoopBody, Random
from kiln.loops.body.builder import dtype_of, symbols_used
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


def dtypes(body: LoopBody) -> tuple[torch.dtype, ...]:
    return tuple(dtype_of(body.ops, place) for place in range(len(body.ops)))


def result_dtypes(body: LoopBody) -> tuple[torch.dtype, ...]:
    return tuple(dtype_of(body.ops, place) for place in body.results)


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
