"""Chooses the vectorised axis of each phase: the innermost, if memory is accessed in order along it.

phase (i1: 768): out[i0, i1] = load x[i0, i1]      =>      phase (i1: 768 vector): ...

A phase that only moves elements to places that data decide has none: the lanes would be taken apart again at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.loops.body.body import Compute, Indirect, Random
from kiln.loops.body.indexing import stride_along, symbols_of
from kiln.loops.kernel.analyses import phase_accesses, phase_stores
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.support.records import dataclass
from kiln.support.target import Target


@final
@dataclass(frozen=True, slots=True)
class ChooseVector:
    """A phase that has a vectorised axis keeps it."""

    name: str = "choose-vector"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        return mapped.with_phases(lambda phase: _with_vector(phase, mapped.kernel))


def _with_vector(phase: Phase, kernel: KernelIR) -> Phase:
    if phase.vector is not None or not phase.axes:
        return phase
    last = len(phase.axes) - 1
    specs, along = {param.name: param.spec for param in kernel.params}, phase.axes[last].symbol
    # Distances in memory between neighbours along the axis, for every access.
    steps = [stride_along(specs[name], index, along) for name, index in phase_accesses(phase) if name in specs]
    if only_scatters(phase):
        return phase
    good = steps.count(1)
    return replace(phase, vector=last) if good and good >= len(steps) - steps.count(0) - good else phase


def only_scatters(phase: Phase) -> bool:
    """Whether it computes nothing, and stores at indices that are data."""
    found = {op.symbol for op in phase.body.ops if isinstance(op, Indirect)}
    places = [symbols_of(*store.index) for store in phase_stores(phase)]
    computes = any(isinstance(op, Compute | Random) for op in phase.body.ops)
    return not computes and bool(found and places) and all(map(found.intersection, places))
