"""Ops of a body that C++ has one function for.

    add(erf(x), 1)                       =>   erf_plus_one(x)
    out[i0] = convert(x, bf16)           =>   out[i0] = x              where `out` is bf16

The sum is erfc(-x): one polynomial and one exponential where `erf` needs two polynomials, and without the rounding of
an erf near -1 (the tail of gelu). A pattern applies where nothing else uses the inner value. A store rounds to the
type of its memory, so that a value need not be rounded before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch

from kiln.graph.prims.table import Kind, Prim
from kiln.loops.body.body import BodyOp, Compute, Const, LoopBody
from kiln.loops.body.builder import dtype_of, operands_of, without_dead
from kiln.loops.body.indexing import symbols_of
from kiln.loops.codegen.cpp.dialect import CPP
from kiln.loops.kernel.kernel import KernelIR, Phase, Store

ERF_PLUS_ONE = Prim("erf_plus_one", 1, "1 + erf(x)", Kind.POINTWISE, floating=True, flops=16)


def fuse_patterns(kernel: KernelIR) -> KernelIR:
    """`kernel` with the patterns of all its bodies replaced."""
    held = {one.name: one.spec.dtype for one in kernel.params}
    return replace(kernel, phases=tuple([_fused_phase(phase, held) for phase in kernel.phases]))


def _fused_phase(phase: Phase, held: Mapping[str, torch.dtype]) -> Phase:
    uses = Counter(place for op in phase.body.ops for place in operands_of(op))
    uses.update(phase.body.results)
    ops = tuple(_fused(op, phase.body.ops, uses) for op in phase.body.ops)
    results = tuple([_stored(number, phase, held) for number in range(len(phase.body.results))])
    if ops == phase.body.ops and results == phase.body.results:
        return phase
    indices = symbols_of(*(at for effect in phase.effects for at in effect.index))
    return replace(phase, body=without_dead(LoopBody(ops, results), indices))


def _stored(number: int, phase: Phase, held: Mapping[str, torch.dtype]) -> int:
    """The place of a result, before its rounding if all that is done with it are stores that round."""
    place = phase.body.results[number]
    op = phase.body.ops[place]
    if not isinstance(op, Compute) or op.op.name != "convert" or op.dtype not in CPP.compute_in:
        return place
    users = [effect for effect in phase.effects if effect.result == number]
    rounds = all(isinstance(one, Store) and one.combine is None and held.get(one.target) == op.dtype for one in users)
    computed = CPP.computed(dtype_of(phase.body.ops, op.operands[0])) == CPP.computed(op.dtype)
    return op.operands[0] if rounds and computed else place


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
