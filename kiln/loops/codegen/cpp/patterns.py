"""Ops of a body that C++ has one function for.

    add(erf(x), 1)   =>   erf_plus_one(x)

The sum is erfc(-x): one polynomial and one exponential where `erf` needs two polynomials, and without the rounding of
an erf near -1 (the tail of gelu). A pattern applies where nothing else uses the inner value.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from kiln.graph.prims.table import Kind, Prim
from kiln.loops.ir.body import BodyOp, Compute, Const, LoopBody
from kiln.loops.ir.builder import operands_of, without_dead
from kiln.loops.ir.indexing import symbols_of
from kiln.loops.ir.kernel import KernelIR, Phase

ERF_PLUS_ONE = Prim("erf_plus_one", 1, "1 + erf(x)", Kind.POINTWISE, floating=True, flops=16)


def fuse_patterns(kernel: KernelIR) -> KernelIR:
    """`kernel` with the patterns of all its bodies replaced."""
    return replace(kernel, phases=tuple(map(_fused_phase, kernel.phases)))


def _fused_phase(phase: Phase) -> Phase:
    uses = Counter(place for op in phase.body.ops for place in operands_of(op))
    uses.update(phase.body.results)
    ops = tuple(_fused(op, phase.body.ops, uses) for op in phase.body.ops)
    if ops == phase.body.ops:
        return phase
    indices = symbols_of(*(at for effect in phase.effects for at in effect.index))
    return replace(phase, body=without_dead(LoopBody(ops, phase.body.results), indices))


def _fused(op: BodyOp, ops: tuple[BodyOp, ...], uses: Counter[int]) -> BodyOp:
    if not isinstance(op, Compute) or op.op.name != "add" or op.dtype == torch.float64:
        return op
    for one, other in (op.operands, op.operands[::-1]):
        inner, constant = ops[one], ops[other]
        is_erf = isinstance(inner, Compute) and inner.op.name == "erf" and uses[one] == 1
        if is_erf and isinstance(constant, Const) and constant.value == 1:
            assert isinstance(inner, Compute)
            return Compute(ERF_PLUS_ONE, inner.operands, op.dtype)
    return op
