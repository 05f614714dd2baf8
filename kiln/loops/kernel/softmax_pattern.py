"""Recognises exp(x - maximum of x), which softmax, its logarithm and cross-entropy sum along rows.

phase (i1: 50257): top[] = amax over (i1): load x[i0, i1]
phase (i1: 50257): total[] = sum over (i1): exp(sub(load x[i0, i1], load top[]))
"""

from __future__ import annotations

from typing import final

from kiln.loops.body.analyses import without_dead
from kiln.loops.body.body import Compute, Load, LoopBody
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.program.nodes import ReduceOp
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class RowMaximum:
    """Effect number `effect` of phase number `phase` is the maximum of `value`, given as a body of its own."""

    phase: int
    effect: int
    value: LoopBody


def exp_below_maximum(kernel: KernelIR, phase: Phase, position: int) -> RowMaximum | None:
    """The maximum m if the value at `position` of `phase` is exp(x - m), with m taken over the same axes; else None."""
    ops = phase.body.ops
    exp = ops[position]
    difference = ops[exp.operands[0]] if isinstance(exp, Compute) and exp.op.name == "exp" else None
    if not isinstance(difference, Compute) or difference.op.name != "sub":
        return None
    maximum = ops[difference.operands[1]]
    if not isinstance(maximum, Load):
        return None
    value = body_of(phase.body, difference.operands[0])
    for number, other in enumerate(kernel.phases):
        for at, effect in enumerate(other.effects):
            if (
                isinstance(effect, Accumulate)
                and effect.op is ReduceOp.MAX
                and effect.target == maximum.buffer
                and set(effect.over) == set(other.axes)
                and other.axes == phase.axes
                and body_of(other.body, other.body.results[effect.result]) == value
            ):
                return RowMaximum(number, at, value)
    return None


def body_of(body: LoopBody, position: int) -> LoopBody:
    """The computation of the value at `position`, as a body of its own."""
    return without_dead(LoopBody(body.ops, (position,)))
