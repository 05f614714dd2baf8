"""Cheaper functions where only 16-bit numbers are made of the result.

    convert(mul(x, add(erf(x), 1)), bf16)   =>   convert(mul(x, add(erf_narrow(x), 1)), bf16)

    sum over (i1): exp(sub(x, m))           =>   sum over (i1): exp_narrow(sub(x, m))          m: amax over (i1): x

A bf16 has 8 significant bits, a float32 24: an error in the 22nd does not survive the conversion. On 16-bit data the
exact functions cost more than memory does. The machine's `exp2` is accurate to 2 units in the last place, and the
product that makes its argument to half a unit of it: exp(x) to (2 + |x|/2) units. Where all x are at most 0 and the
maximum is 0, a sum of them is off by at most 2.2 of its own units (|x| exp(x) is below 0.37), less than a long sum is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.analyses import operands_of
from kiln.loops.body.body import BodyOp, Compute, LoopBody
from kiln.loops.body.reference import FAST_VARIANTS
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.softmax_pattern import exp_below_maximum
from kiln.loops.program.nodes import ReduceOp
from kiln.support.records import dataclass
from kiln.support.target import Target

HALF_PRECISION = (torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True, slots=True)
class FastMath:
    """A value that two phases compute must be one value: a function is cheap everywhere or nowhere."""

    name: str = "fast-math"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        exact = _exact_functions(mapped.kernel)
        return mapped.with_phases(lambda phase: _with_fast_variants(phase, exact))


def _exact_functions(kernel: KernelIR) -> frozenset[str]:
    """Names of the functions that stay exact: results of theirs reach more than 16-bit numbers."""
    dtypes = {param.name: param.spec.dtype for param in kernel.params}
    targets = {store.target for phase in kernel.phases for store in phase_stores(phase)} & dtypes.keys()
    if all(dtypes[name] in HALF_PRECISION or not dtypes[name].is_floating_point for name in targets):
        return frozenset()
    return frozenset(name for phase in kernel.phases for name in _wide_functions(kernel, phase))


def _with_fast_variants(phase: Phase, exact: Collection[str]) -> Phase:
    body = phase.body.mapped(lambda op: _fast_variant(op, exact))
    return phase if body is phase.body else replace(phase, body=body)


def _fast_variant(op: BodyOp, exact: Collection[str]) -> BodyOp:
    if isinstance(op, Compute) and op.op.name not in exact and op.dtype != torch.float64:
        return replace(op, op=FAST_VARIANTS.get(op.op.name, op.op))
    return op


def _wide_functions(kernel: KernelIR, phase: Phase) -> Iterator[str]:
    """Names of functions whose results reach more than 16-bit numbers."""
    wide, summed = _wide_ops(phase.body), _softmax_terms(kernel, phase)
    for position, op in enumerate(phase.body.ops):
        if position in wide - summed and isinstance(op, Compute):
            yield op.op.name


def _softmax_terms(kernel: KernelIR, phase: Phase) -> set[int]:
    """Places of exp(x - maximum of x) that are only summed."""
    body = phase.body
    operands = {position for op in body.ops for position in operands_of(op)}
    return {
        position
        for number, position in enumerate(body.results)
        if position not in operands
        and all(
            isinstance(effect, Accumulate) and effect.op is ReduceOp.SUM and effect.running is None
            for effect in phase.effects
            if effect.result == number
        )
        and exp_below_maximum(kernel, phase, position) is not None
    }


def _wide_ops(body: LoopBody) -> set[int]:
    """Places whose values reach more than 16-bit numbers."""
    wide = set(body.results)
    for position in reversed(range(len(body.ops))):
        op = body.ops[position]
        if isinstance(op, Compute) and op.op.name == "convert" and op.dtype in HALF_PRECISION:
            continue
        keeps = isinstance(op, Compute) and position not in wide and op.dtype.is_floating_point
        if not keeps:
            wide |= set(operands_of(op))
    return wide
