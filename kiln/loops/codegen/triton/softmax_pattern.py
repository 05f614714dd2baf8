"""Finds exp(x - largest x), which softmax, its logarithm and cross-entropy add up along rows.

phase (i1: 50257): top[] = amax over (i1): load x[i0, i1]
phase (i1: 50257): total[] = sum over (i1): exp(sub(load x[i0, i1], load top[]))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kiln.loops.body.body import Compute, Load, LoopBody
from kiln.loops.body.builder import without_dead
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.program.nodes import ReduceOp


@final
@dataclass(frozen=True, slots=True)
class Largest:
    """Effect number `effect` of phase number `phase` finds the largest `value`, which is a body of its own."""

    phase: int
    effect: int
    value: LoopBody


def exp_below_largest(kernel: KernelIR, phase: Phase, place: int) -> Largest | None:
    """Who finds the largest x, if the value at `place` is exp(x - largest x) over the same axes; else None."""
    ops = phase.body.ops
    exp = ops[place]
    less = ops[exp.operands[0]] if isinstance(exp, Compute) and exp.op.name == "exp" else None
    if not isinstance(less, Compute) or less.op.name != "sub":
        return None
    largest = ops[less.operands[1]]
    if not isinstance(largest, Load):
        return None
    value = alone(phase.body, less.operands[0])
    for number, other in enumerate(kernel.phases):
        for at, effect in enumerate(other.effects):
            if (
                isinstance(effect, Accumulate)
                and effect.op is ReduceOp.MAX
                and effect.target == largest.buffer
                and set(effect.over) == set(other.axes)
                and other.axes == phase.axes
                and alone(other.body, other.body.results[effect.result]) == value
            ):
                return Largest(number, at, value)
    return None


def alone(body: LoopBody, place: int) -> LoopBody:
    """What makes the value at `place`, as a body of its own."""
    return without_dead(LoopBody(body.ops, (place,)))
