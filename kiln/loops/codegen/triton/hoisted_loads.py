"""What a program loads once is asked for before it combines its rows.

    phase (i1: 4096): total[] = sum over (i1): load x[i0, i1]
    phase ():         out[i0] = sub(load x[i0, target[i0]], log(load total[]))

    phase ():         load target[i0]                 on its way while the row is
    phase (i1: 4096): load x[i0, i1]
    phase ():         load x[i0, target[i0]]
    ...

Behind a sum of a block stands a barrier that loads do not pass: a number that is asked for behind it is waited for
alone. What needs a loaded number for its address is asked for behind the row, which needs none. The statement writer
finds the values again when the later phases load them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kiln.loops.body.body import Indirect, Load, LoopBody
from kiln.loops.body.builder import operands_of, symbols_used, without_dead
from kiln.loops.codegen.triton.tiles import Tiling
from kiln.loops.kernel.kernel import KernelIR, Phase

FIRST, SECOND, NEVER = 0, 1, 2
"""When a load can be asked for: at once; when an index has been loaded; when something has been computed."""


def with_early_loads(kernel: KernelIR, tiling: Tiling) -> KernelIR:
    """`kernel` with phases in front that load what its phases without axes load behind those with axes."""
    row = next((place for place, phase in enumerate(kernel.phases) if phase.axes), len(kernel.phases))
    behind = [phase for phase in kernel.phases[row:] if not phase.axes]
    first, second = _loading(kernel, behind, FIRST), _loading(kernel, behind, SECOND)
    if second and not any(dim.looped for dim in tiling.dims):
        first += _loading(kernel, kernel.phases[row : row + 1], FIRST)
    early = (*first, *second)
    return replace(kernel, phases=(*early, *kernel.phases)) if early else kernel


def _loading(kernel: KernelIR, phases: Iterable[Phase], wanted: int) -> list[Phase]:
    """Phases that do nothing but the loads of `phases` that can be asked for when `wanted` says."""
    made = []
    for phase in phases:
        when = _when(kernel, phase.body)
        places = tuple([at for at, op in enumerate(phase.body.ops) if isinstance(op, Load) and when[at] == wanted])
        if places:
            made.append(Phase(phase.axes, without_dead(LoopBody(phase.body.ops, places)), ()))
    return made


def _when(kernel: KernelIR, body: LoopBody) -> list[int]:
    """When each place of a body can be had; what is written, or local, only when it has been computed."""
    arguments = {one.name for one in kernel.params} - kernel.writes
    when: list[int] = []
    bound: dict[object, int] = {}
    for op in body.ops:
        needs = [when[place] for place in operands_of(op)] + [bound[one] for one in symbols_used(op) if one in bound]
        found = max(needs, default=FIRST)
        if isinstance(op, Load) and op.buffer not in arguments:
            found = NEVER
        if isinstance(op, Indirect):
            found = max(found, SECOND)
            bound[op.symbol] = found
        when.append(found)
    return when
