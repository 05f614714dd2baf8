"""Numbers that a kernel only moves are moved as bits: 16-bit floats are not widened, nor bools made masks.

    kernel flip(x: bf16[9] -> out: bf16[9])        =>   kernel flip(x: i16[9] -> out: i16[9])
        phase (i0: 9): out[i0] = load x[8 - i0]             phase (i0: 9): out[i0] = load x[8 - i0]

Moved are numbers that are loaded, constant or chosen by `where`, and that nothing but stores reads. The bits of a NaN
stay as they are, as they do in eager. In vectors a 16-bit float is a float32, and a bool a mask of 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.loops.body.analyses import operands_of
from kiln.loops.body.body import BodyOp, Compute, Const, Load, LoopBody
from kiln.loops.kernel.analyses import phase_writes
from kiln.loops.kernel.kernel import KernelIR, Phase, Store
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
        names = {param.name: param.spec.dtype for param in kernel.params if param.spec.dtype in BITS}
        if not names:
            return mapped, 0
        moved = [{at for at, op in enumerate(phase.body.ops) if _is_move(op)} for phase in kernel.phases]
        while _exclude(kernel.phases, names, moved):
            pass
        if not any(moved):
            return mapped, 0
        return replace(mapped, kernel=_of_bits(kernel, names, moved)), 1


def _is_move(op: BodyOp) -> bool:
    return op.dtype in BITS and (isinstance(op, Load | Const) or (isinstance(op, Compute) and op.op.name == "where"))


def _exclude(phases: Sequence[Phase], names: dict[str, torch.dtype], moved: Sequence[set[int]]) -> bool:
    """Take out numbers and buffers that others want as they are; whether there were any."""
    size = len(names) + sum(map(len, moved))
    for phase, positions in zip(phases, moved, strict=True):
        positions.difference_update(_wanted(phase, names, positions))
        for name in _unmoved(phase, names, positions):
            names.pop(name, None)
    return len(names) + sum(map(len, moved)) < size


def _wanted(phase: Phase, names: dict[str, torch.dtype], positions: set[int]) -> Iterator[int]:
    """Numbers that are read as numbers, come from elsewhere, or are stored in another form."""
    ops = phase.body.ops
    for at, op in enumerate(ops):
        chosen = operands_of(op)[1:] if at in positions and isinstance(op, Compute) else ()
        yield from [operand for operand in operands_of(op) if operand not in chosen]
        if (isinstance(op, Load) and op.buffer not in names) or any(ops[each].dtype != op.dtype for each in chosen):
            yield at
        if any(each not in positions for each in chosen):
            yield at
    for effect in phase.effects:
        value = phase.body.results[effect.result]
        if not isinstance(effect, Store) or effect.combine is not None or names.get(effect.target) != ops[value].dtype:
            yield value


def _unmoved(phase: Phase, names: dict[str, torch.dtype], positions: set[int]) -> list[str]:
    """Buffers that are read or written as numbers, by a scan too."""
    read = [op.buffer for at, op in enumerate(phase.body.ops) if isinstance(op, Load) and at not in positions]
    written = [each for each in phase.effects if phase.body.results[each.result] not in positions]
    return [*read, *phase_writes(replace(phase, effects=tuple(written)))]


def _of_bits(kernel: KernelIR, names: dict[str, torch.dtype], moved: Sequence[set[int]]) -> KernelIR:
    params = [
        replace(param, spec=replace(param.spec, dtype=BITS[param.spec.dtype])) if param.name in names else param
        for param in kernel.params
    ]
    phases = [
        replace(phase, body=LoopBody(tuple(_bits(phase.body.ops, positions)), phase.body.results))
        for phase, positions in zip(kernel.phases, moved, strict=True)
    ]
    return replace(kernel, params=tuple(params), phases=tuple(phases))


def _bits(ops: Sequence[BodyOp], positions: set[int]) -> Iterator[BodyOp]:
    for at, op in enumerate(ops):
        if at not in positions:
            yield op
        elif isinstance(op, Const):
            bits = BITS[op.dtype]
            yield Const(torch.tensor(op.value, dtype=op.dtype, device="cpu").view(bits).item(), bits)
        else:
            assert isinstance(op, Load | Compute)
            yield replace(op, dtype=BITS[op.dtype])
