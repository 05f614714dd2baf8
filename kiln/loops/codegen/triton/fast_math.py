"""Cheaper functions where nothing but 16-bit numbers is made of the result.

    convert(mul(x, add(erf(x), 1)), bf16)   =>   convert(mul(x, add(erf_narrow(x), 1)), bf16)

    sum over (i1): exp(sub(x, m))           =>   sum over (i1): exp_narrow(sub(x, m))          m: amax over (i1): x

A bf16 has 8 digits, a float32 24: a function that is off in the 22nd changes nothing that the conversion leaves. On
16-bit data the exact functions cost more than memory does. `exp2` of the machine is off by 2 units in the last place,
and the product that makes its argument by half a unit of it: exp(x) by (2 + |x|/2) units. Where no x is above 0 and the
largest is 0, a sum of them is off by 2.2 units of its own at most (|x| exp(x) is below 0.37), less than a long sum is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import BodyOp, Compute, LoopBody
from kiln.loops.body.builder import operands_of
from kiln.loops.codegen.triton.softmax_pattern import exp_below_largest
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.program.nodes import ReduceOp

NARROW = (torch.bfloat16, torch.float16)
NARROW_OPS = ("erf", "exp", "exp2", "log", "div", "reciprocal", "sigmoid")
_CHEAP = {name: replace(PRIMS[name], name=f"{name}_narrow") for name in NARROW_OPS}


def with_narrow_functions(kernel: KernelIR) -> KernelIR:
    """`kernel` with the cheaper functions wherever they will do.

    A value that two phases compute has to be one value: a function is the cheap one everywhere or nowhere.
    """
    specs = {one.name: one.spec for one in kernel.params}
    stored = [specs[store.target].dtype for phase in kernel.phases for store in phase_stores(phase)
              if store.target in specs]  # fmt: skip
    exact: set[str] = set()
    if any(dtype.is_floating_point and dtype not in NARROW for dtype in stored):
        exact = {name for phase in kernel.phases for name in _wide_functions(kernel, phase)}
    phases = tuple(replace(phase, body=_narrowed(phase.body, exact)) for phase in kernel.phases)
    return replace(kernel, phases=phases)


def _narrowed(body: LoopBody, exact: Collection[str]) -> LoopBody:
    return LoopBody(tuple([_cheaper(op, exact) for op in body.ops]), body.results)


def _wide_functions(kernel: KernelIR, phase: Phase) -> Iterator[str]:
    """Names of functions of which something other than a 16-bit number is made."""
    wide, summed = _wide_places(phase.body), _softmax_terms(kernel, phase)
    for place, op in enumerate(phase.body.ops):
        if place in wide - summed and isinstance(op, Compute):
            yield op.op.name


def _softmax_terms(kernel: KernelIR, phase: Phase) -> set[int]:
    """Places of exp(x - largest x) that are only summed."""
    body = phase.body
    operands = {place for op in body.ops for place in operands_of(op)}
    return {
        place
        for number, place in enumerate(body.results)
        if place not in operands
        and all(
            isinstance(effect, Accumulate) and effect.op is ReduceOp.SUM and effect.running is None
            for effect in phase.effects
            if effect.result == number
        )
        and exp_below_largest(kernel, phase, place) is not None
    }


def _cheaper(op: BodyOp, exact: Collection[str]) -> BodyOp:
    if isinstance(op, Compute) and op.op.name in _CHEAP and op.op.name not in exact and op.dtype != torch.float64:
        return replace(op, op=_CHEAP[op.op.name])
    return op


def _wide_places(body: LoopBody) -> set[int]:
    """Places of which something other than a 16-bit number is made."""
    wide = set(body.results)
    for place in reversed(range(len(body.ops))):
        op = body.ops[place]
        if is_narrowing(op):
            continue
        keeps = isinstance(op, Compute) and place not in wide and op.dtype.is_floating_point
        if not keeps:
            wide |= set(operands_of(op))
    return wide


def is_narrowing(op: BodyOp) -> bool:
    """Does it round to 16 bits?"""
    return isinstance(op, Compute) and op.op.name == "convert" and op.dtype in NARROW
