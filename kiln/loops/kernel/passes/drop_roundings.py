"""Values that are only stored need no rounding: the store rounds to the dtype of its memory.

out[i0] = convert(x, bf16)           =>   out[i0] = x              where `out` is bf16
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch

from kiln.loops.body.body import Compute, LoopBody
from kiln.loops.kernel.kernel import Phase, Store
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.passes.fuse_erf import with_live_body
from kiln.support.records import dataclass
from kiln.support.target import Target


@final
@dataclass(frozen=True, slots=True)
class DropRoundings:
    """`rounded`: dtypes that are computed in float32 and rounded when they are stored."""

    name: str = "drop-roundings"
    rounded: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        dtypes = {param.name: param.spec.dtype for param in mapped.kernel.params}

        def unrounded(phase: Phase) -> Phase:
            results = tuple([self._unrounded(number, phase, dtypes) for number in range(len(phase.body.results))])
            changed = results != phase.body.results
            return with_live_body(phase, LoopBody(phase.body.ops, results)) if changed else phase

        return mapped.with_phases(unrounded)

    def _unrounded(self, number: int, phase: Phase, dtypes: Mapping[str, torch.dtype]) -> int:
        """The position of a result, before its rounding if all its uses are stores that round."""
        position = phase.body.results[number]
        op = phase.body.ops[position]
        if not isinstance(op, Compute) or op.op.name != "convert" or op.dtype not in self.rounded:
            return position
        users = [effect for effect in phase.effects if effect.result == number]
        stores = [user for user in users if isinstance(user, Store) and user.combine is None]
        rounds = len(stores) == len(users) and all(dtypes.get(store.target) == op.dtype for store in stores)
        is_float32 = phase.body.ops[op.operands[0]].dtype in (*self.rounded, torch.float32)
        return op.operands[0] if rounds and is_float32 else position
