"""Kernels that work mostly on 64-bit numbers get half as many lanes, so that a vector of these is one register.

    phase (i1: 768): out[i0, i1] = mul(load x[i0, i1], f64(2.0))      =>      lanes 4
    phase (i1: 768): out[i0, i1] = load x[i0, i1]     (i16)           =>      lanes 16

Vectors of two registers GCC keeps in memory between the steps of a loop, and it compares and selects lane by lane in
them. Only for AVX2: with AVX-512 the prelude has instructions for the halves of such a vector. Copies of integers of 8
and 16 bits whose rows stay rows get as many lanes as fill a register, also where they are cut (`kernel/cuts.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.analyses import operands_of, symbols_used
from kiln.loops.body.body import BodyOp, Compute, Const, IndexValue, Indirect, Load, Test
from kiln.loops.body.indexing import Axis, stride_along
from kiln.loops.kernel.cuts import CHOICES, lane_cuts
from kiln.loops.kernel.kernel import KernelIR, Phase, Store
from kiln.loops.kernel.mapped import MappedKernel
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Symbol

AVX2_BYTES = 32


@final
@dataclass(frozen=True, slots=True)
class ChooseLanes:
    name: str = "choose-lanes"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        if target.vector_bytes != AVX2_BYTES:
            return mapped, 0
        copied = {_copied_bytes(mapped.kernel, phase) for phase in mapped.kernel.phases}
        if len(copied) == 1 and 0 not in copied:
            return replace(mapped, lanes=target.vector_bytes // copied.pop()), 1
        work = [_work(mapped.kernel, phase) for phase in mapped.kernel.phases]
        wide, narrow = (sum(each) for each in zip(*work, strict=True))
        if wide <= narrow:
            return mapped, 0
        return replace(mapped, lanes=target.vector_bytes // 8), 1


def _lane_axes(kernel: KernelIR, phase: Phase) -> tuple[Axis, ...]:
    """The axes of which the last becomes the lanes."""
    return kernel.units if kernel.strip else phase.axes


def _copied_bytes(kernel: KernelIR, phase: Phase) -> int:
    """Bytes of the small integers that a phase copies from row to row; 0 if it does anything else."""
    axes, ops = _lane_axes(kernel, phase), phase.body.ops
    specs = {param.name: param.spec for param in kernel.params}
    if not axes or not all(isinstance(effect, Store) for effect in phase.effects):
        return 0
    lane = axes[-1].symbol
    dtypes = {op.dtype for op in ops if not isinstance(op, Test) and op.dtype != torch.bool}
    if len(dtypes) != 1 or not dtypes <= _SMALL or not all(map(_copies, ops)):
        return 0
    if any(lane in symbols_used(op) for op in ops if isinstance(op, Test)) and not lane_cuts(phase, lane):
        return 0
    places = [(op.buffer, op.index) for op in ops if isinstance(op, Load)] + [
        (effect.target, effect.index) for effect in phase.effects if isinstance(effect, Store)
    ]
    in_rows = all(name in specs and stride_along(specs[name], index, lane) == 1 for name, index in places)
    return dtypes.pop().itemsize if in_rows else 0


def _copies(op: BodyOp) -> bool:
    """Whether it is moved or chosen, and by tests of indices only."""
    if op.dtype == torch.bool:
        return isinstance(op, Test | Const) or (isinstance(op, Compute) and op.op.name in CHOICES)
    return isinstance(op, Load | Const) or (isinstance(op, Compute) and op.op.name == "where")


_SMALL = {torch.uint8, torch.int8, torch.int16}


def _work(kernel: KernelIR, phase: Phase) -> tuple[int, int]:
    """Operations per step on 64-bit lanes, and on others. What is the same in all lanes does not count."""
    axes = _lane_axes(kernel, phase)
    if not axes:
        return 0, 0
    moving: set[Symbol] = {axes[-1].symbol}
    dtypes: dict[int, torch.dtype] = {}
    counts = [0, 0]
    for position, op in enumerate(phase.body.ops):
        operands = [dtypes[operand] for operand in operands_of(op) if operand in dtypes]
        if isinstance(op, IndexValue) or not (operands or moving & symbols_used(op)):
            continue  # index expressions are compared in 32-bit lanes where they can be
        dtypes[position] = op.dtype
        if isinstance(op, Indirect):
            moving.add(op.symbol)
        counts[not any(dtype.itemsize == 8 for dtype in (op.dtype, *operands))] += _flops(op)
    for effect in phase.effects:
        result = dtypes.get(phase.body.results[effect.result])
        if result is not None:
            counts[result.itemsize != 8] += 1
    return counts[0], counts[1]


def _flops(op: BodyOp) -> int:
    return max(op.op.flops, 1) if isinstance(op, Compute) else int(isinstance(op, Load | Indirect))
