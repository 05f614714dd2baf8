"""Loads that depend on no reduction are requested before the reductions.

    phase (i1: 4096): total[] = sum over (i1): load x[i0, i1]
    phase ():         out[i0] = sub(load x[i0, target[i0]], log(load total[]))

    phase ():         load target[i0]                 in flight together with the row
    phase (i1: 4096): load x[i0, i1]
    phase ():         load x[i0, target[i0]]
    ...

The sum of a block ends in a barrier that loads do not pass: a number that is requested behind it is waited for alone.
A load whose address depends on a loaded number is requested behind the row, which depends on none. The added phases
have no effects: the statement writer reuses their values where later phases load the same elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import final

from kiln.loops.body.analyses import operands_of, symbols_used, without_dead
from kiln.loops.body.body import Indirect, Load, LoopBody
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.support.records import dataclass
from kiln.support.target import Target

AT_ONCE, AFTER_LOAD, NEVER = 0, 1, 2
"""When a load can be requested: at once; when its index has been loaded; only when something has been computed."""


@final
@dataclass(frozen=True, slots=True)
class HoistLoads:
    """Phases in front of a kernel load what its phases without axes load behind those with axes."""

    name: str = "hoist-loads"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        kernel = mapped.kernel
        row = next((position for position, phase in enumerate(kernel.phases) if phase.axes), len(kernel.phases))
        behind = [phase for phase in kernel.phases[row:] if not phase.axes]
        first, second = _loading(kernel, behind, AT_ONCE), _loading(kernel, behind, AFTER_LOAD)
        looped = mapped.tiling is not None and any(dim.looped for dim in mapped.tiling.dims)
        if second and not looped:
            first += _loading(kernel, kernel.phases[row : row + 1], AT_ONCE)
        hoisted = (*first, *second)
        return replace(mapped, kernel=replace(kernel, phases=(*hoisted, *kernel.phases))), len(hoisted)


def _loading(kernel: KernelIR, phases: Iterable[Phase], wanted: int) -> list[Phase]:
    """Phases that do nothing but the loads of `phases` that can be requested when `wanted` says."""
    made = []
    for phase in phases:
        when = _when(kernel, phase.body)
        positions = tuple([at for at, op in enumerate(phase.body.ops) if isinstance(op, Load) and when[at] == wanted])
        if positions:
            made.append(Phase(phase.axes, without_dead(LoopBody(phase.body.ops, positions)), ()))
    return made


def _when(kernel: KernelIR, body: LoopBody) -> list[int]:
    """When the value at each position can be had; what the kernel writes, and locals, only when computed."""
    arguments = {param.name for param in kernel.params} - kernel.writes
    when: list[int] = []
    bound: dict[object, int] = {}
    for op in body.ops:
        needs = [when[position] for position in operands_of(op)]
        needs += [bound[symbol] for symbol in symbols_used(op) if symbol in bound]
        found = max(needs, default=AT_ONCE)
        if isinstance(op, Load) and op.buffer not in arguments:
            found = NEVER
        if isinstance(op, Indirect):
            found = max(found, AFTER_LOAD)
            bound[op.symbol] = found
        when.append(found)
    return when
