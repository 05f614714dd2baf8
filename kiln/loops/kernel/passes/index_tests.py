"""Comparisons of indices become tests of a relation, whose place along a loop is known.

    v0 = sub(index(i1, i64), index(i0, i64))
    where(le(v0, i64(0)), load x[i0, i1], f32(0.0))      =>      where(test(i1 <= i0), load x[i0, i1], f32(0.0))

For C++, where the loop over lanes is cut at such a place (`loops/kernel/cuts.py`). Indices are far from the ends of
64-bit numbers; constants beyond 32 bits are not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.analyses import without_dead
from kiln.loops.body.body import BodyOp, Compute, Const, IndexValue, LoopBody, Test
from kiln.loops.body.indexing import symbols_of
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.kernel import Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Int, Relation, rel_eq, rel_ge, rel_gt, rel_le, rel_lt, rel_ne

RELATIONS: Mapping[str, Callable[[Int, Int], Relation | bool]] = {
    "eq": rel_eq, "ne": rel_ne, "lt": rel_lt, "le": rel_le, "gt": rel_gt, "ge": rel_ge,
}  # fmt: skip
LARGEST = 1 << 31


@final
@dataclass(frozen=True, slots=True)
class IndexTests:
    name: str = "index-tests"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        return mapped.with_phases(_tested)


def _tested(phase: Phase) -> Phase:
    if not any(isinstance(op, IndexValue) for op in phase.body.ops):
        return phase
    indices: dict[int, Int] = {}
    ops: list[BodyOp] = []
    for position, op in enumerate(phase.body.ops):
        index = _index(op, indices)
        if index is not None:
            indices[position] = index
        ops.append(_compared(op, indices))
    if tuple(ops) == phase.body.ops:
        return phase
    used = symbols_of(*[at for store in phase_stores(phase) for at in store.index])
    return replace(phase, body=without_dead(LoopBody(tuple(ops), phase.body.results), used))


def _index(op: BodyOp, indices: Mapping[int, Int]) -> Int | None:
    """The expression that a value is, if it is one of indices."""
    if op.dtype != torch.int64:
        return None
    if isinstance(op, IndexValue):
        return op.expr
    if isinstance(op, Const):
        return int(op.value) if abs(op.value) < LARGEST else None
    if not isinstance(op, Compute) or op.op.name not in ("add", "sub"):
        return None
    given = _given(op.operands, indices)
    if given is None:
        return None
    return given[0] + given[1] if op.op.name == "add" else given[0] - given[1]


def _given(operands: Sequence[int], indices: Mapping[int, Int]) -> tuple[Int, Int] | None:
    found = [indices[operand] for operand in operands if operand in indices]
    return (found[0], found[1]) if len(found) == len(operands) == 2 else None


def _compared(op: BodyOp, indices: Mapping[int, Int]) -> BodyOp:
    if not isinstance(op, Compute) or op.op.name not in RELATIONS:
        return op
    given = _given(op.operands, indices)
    if given is None:
        return op
    relation = RELATIONS[op.op.name](*given)
    return Const(relation, torch.bool) if isinstance(relation, bool) else Test(relation)
