"""1 + erf(x) as one function.

    add(erf(x), 1)      =>   erf_plus_one(x)       where nothing else uses the erf

It is erfc(-x): one polynomial and one exponential where `erf` needs two polynomials, and without the rounding of an
erf near -1 (the tail of gelu).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.analyses import operands_of, without_dead
from kiln.loops.body.body import BodyOp, Compute, Const, LoopBody
from kiln.loops.body.indexing import symbols_of
from kiln.loops.body.reference import ERF_PLUS_ONE
from kiln.loops.kernel.kernel import Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.support.records import dataclass
from kiln.support.target import Target


@final
@dataclass(frozen=True, slots=True)
class FuseErf:
    name: str = "fuse-erf"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        return mapped.with_phases(_fused_phase)


def _fused_phase(phase: Phase) -> Phase:
    body = phase.body
    if not any(isinstance(op, Compute) and op.op.name == "erf" for op in body.ops):
        return phase
    uses = Counter(position for op in body.ops for position in operands_of(op))
    uses.update(body.results)
    fused = body.mapped(lambda op: _fused(op, body.ops, uses))
    return phase if fused is body else with_live_body(phase, fused)


def with_live_body(phase: Phase, body: LoopBody) -> Phase:
    """`phase` with `body`, of which ops that neither results nor effects need are dropped."""
    indices = symbols_of(*(at for effect in phase.effects for at in effect.index))
    return replace(phase, body=without_dead(body, indices))


def _fused(op: BodyOp, ops: tuple[BodyOp, ...], uses: Counter[int]) -> BodyOp:
    if not isinstance(op, Compute) or op.op.name != "add" or op.dtype == torch.float64:
        return op
    for left, right in (op.operands, op.operands[::-1]):
        erf, constant = ops[left], ops[right]
        is_erf = isinstance(erf, Compute) and erf.op.name == "erf" and uses[left] == 1
        if is_erf and isinstance(constant, Const) and constant.value == 1:
            assert isinstance(erf, Compute)
            return Compute(ERF_PLUS_ONE, erf.operands, op.dtype)
    return op
