"""Rounds each 16-bit result, as eager does, which stores it; numbers of 16 bits are computed in float32.

    v2 = add(v0, v1)   (bf16)        =>   v2 = convert(v0, f32);  v3 = convert(v1, f32)
    v3 = mul(v2, v2)   (bf16)             v4 = convert(add(v2, v3), bf16);  ...

Only for a target that `rounds` (`options={"numerics": "rounded"}` or "strict"): otherwise a chain of 16-bit ops in
one kernel is rounded once, at its end, which is faster and more accurate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.analyses import moved
from kiln.loops.body.body import BodyOp, Compute, LoopBody
from kiln.loops.kernel.kernel import Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.support.records import dataclass
from kiln.support.target import Target

CONVERT = PRIMS["convert"]
WITHOUT_ROUNDING = frozenset((
    "convert", "bitcast", "neg", "abs", "where", "maximum", "minimum", "fmax", "fmin", "copysign", "floor", "ceil",
    "trunc", "round", "sign",
))  # fmt: skip
"""Ops whose result on 16-bit numbers is one, or that round by themselves."""


@final
@dataclass(frozen=True, slots=True)
class RoundHalves:
    """`rounded`: dtypes that are computed in float32."""

    name: str = "round-halves"
    rounded: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        if not target.rounds:
            return mapped, 0
        return mapped.with_phases(self._rounded_phase)

    def _rounded_phase(self, phase: Phase) -> Phase:
        if not any(map(self._is_rounded, phase.body.ops)):
            return phase
        return replace(phase, body=self._rounded_body(phase.body))

    def _is_rounded(self, op: BodyOp) -> bool:
        return isinstance(op, Compute) and op.dtype in self.rounded and op.op.name not in WITHOUT_ROUNDING

    def _rounded_body(self, body: LoopBody) -> LoopBody:
        ops: list[BodyOp] = []
        positions: list[int] = []

        def append(op: BodyOp) -> int:
            ops.append(op)
            return len(ops) - 1

        def wide(position: int) -> int:
            narrow = ops[position].dtype in self.rounded
            return append(Compute(CONVERT, (position,), torch.float32)) if narrow else position

        for op in body.ops:
            if isinstance(op, Compute) and self._is_rounded(op):
                operands = tuple([wide(positions[operand]) for operand in op.operands])
                computed = append(Compute(op.op, operands, torch.float32))
                positions.append(append(Compute(CONVERT, (computed,), op.dtype)))
            else:
                positions.append(append(moved(op, positions)))
        return LoopBody(tuple(ops), tuple([positions[position] for position in body.results]))
