"""Kernels that only move 16-bit floats or bools move their bits: these are not widened, and narrowed again.

    kernel flip(x: bf16[9] -> out: bf16[9])        =>   kernel flip(x: i16[9] -> out: i16[9])
        phase (i0: 9): out[i0] = load x[8 - i0]             phase (i0: 9): out[i0] = load x[8 - i0]

Moved are numbers that are loaded, constant or chosen by `where`, and that nothing but stores reads. The bits of a NaN
stay as they are, as they do in eager. In vectors a 16-bit float is a float32, and a bool a mask of 32 bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.analyses import operands_of
from kiln.loops.body.body import BodyOp, Compute, Const, Load, LoopBody
from kiln.loops.kernel.kernel import Effect, KernelIR, Phase, Store
from kiln.loops.kernel.mapped import MappedKernel
from kiln.support.records import dataclass
from kiln.support.target import Target

BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.bool: torch.uint8}


@final
@dataclass(frozen=True, slots=True)
class MoveBits:
    name: str = "move-bits"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        kernel = mapped.kernel
        dtypes = {param.name: param.spec.dtype for param in kernel.params}
        if BITS.keys().isdisjoint(dtypes.values()) or any(local.dtype in BITS for local in kernel.locals):
            return mapped, 0
        if not all(_only_moves(phase, effect, dtypes) for phase in kernel.phases for effect in phase.effects):
            return mapped, 0
        if any(_reads_numbers(op, phase.body.ops) for phase in kernel.phases for op in phase.body.ops):
            return mapped, 0
        return replace(mapped, kernel=_of_bits(kernel)), 1


def _is_moved(op: BodyOp) -> bool:
    """A number that is moved; other bools are conditions."""
    if op.dtype == torch.bool:
        return isinstance(op, Load)
    return op.dtype in BITS and (isinstance(op, Load | Const) or (isinstance(op, Compute) and op.op.name == "where"))


def _reads_numbers(op: BodyOp, ops: tuple[BodyOp, ...]) -> bool:
    """Does an op compute with what would be bits, or compute what would have to be?"""
    if op.dtype in BITS and op.dtype != torch.bool and not _is_moved(op):
        return True
    moved = [operand for operand in operands_of(op) if _is_moved(ops[operand])]
    return bool(moved) and not (_is_moved(op) and all(ops[operand].dtype == op.dtype for operand in moved))


def _only_moves(phase: Phase, effect: Effect, dtypes: dict[str, torch.dtype]) -> bool:
    value, held = phase.body.ops[phase.body.results[effect.result]], dtypes.get(effect.target)
    if value.dtype not in BITS and held not in BITS:
        return True
    return isinstance(effect, Store) and effect.combine is None and _is_moved(value) and held == value.dtype


def _of_bits(kernel: KernelIR) -> KernelIR:
    params = [
        replace(param, spec=replace(param.spec, dtype=BITS.get(param.spec.dtype, param.spec.dtype)))
        for param in kernel.params
    ]
    phases = [
        replace(phase, body=LoopBody(tuple([_as_bits(op) for op in phase.body.ops]), phase.body.results))
        for phase in kernel.phases
    ]
    return replace(kernel, params=tuple(params), phases=tuple(phases))


def _as_bits(op: BodyOp) -> BodyOp:
    if not _is_moved(op):
        return op
    if isinstance(op, Const):
        return Const(torch.tensor(op.value, dtype=op.dtype, device="cpu").view(torch.int16).item(), torch.int16)
    assert isinstance(op, Load | Compute)
    return replace(op, dtype=BITS[op.dtype])
