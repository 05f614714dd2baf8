"""Phases of which each has an axis that the other lacks share none, where no local keeps a value along them.

    phase (i1: 128, i2: 128):  out[i0, i1, i2] = ..            phase (i1: 128, i2: 128):  out[i0, i1, i2] = ..
    phase (i3: 127, i2: 128):  rows += ..                =>    phase (i3: 127, i4: 128):  rows += ..
    phase (i1: 128, i3: 127):  columns += ..                   phase (i5: 128, i6: 127):  columns += ..

Axes that always occur together become one dimension of a program's blocks. Apart, each of the three would be a
dimension of a few elements, and a program would take thousands of turns. Phases of which one has all axes of the other
keep them, as they may use each other's loads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.loops.body.rename import Renaming
from kiln.loops.kernel.canonical import rename_phase
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.mapped import MappedKernel
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Symbol, symbol

Axes = frozenset[Symbol]


@final
@dataclass(frozen=True, slots=True)
class OwnLoops:
    name: str = "own-loops"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        renamed = _renamings(mapped.kernel)
        if not renamed:
            return mapped, 0
        phases = tuple(
            rename_phase(phase, Renaming({}, renamed.get(_symbols(phase), {}))) for phase in mapped.kernel.phases
        )
        return replace(mapped, kernel=replace(mapped.kernel, phases=phases)), len(renamed)


def _symbols(phase: Phase) -> Axes:
    return frozenset(axis.symbol for axis in phase.axes)


def _renamings(kernel: KernelIR) -> dict[Axes, dict[Symbol, Symbol]]:
    """New symbols for the axes of phases, but for the first of those that overlap."""
    kept = {axis.symbol for local in kernel.locals for axis in local.axes}
    names = {axis.symbol.name for phase in kernel.phases for axis in phase.axes}
    names |= {axis.symbol.name for axis in kernel.units}
    found: dict[Axes, dict[Symbol, Symbol]] = {}
    seen: dict[Axes, None] = {}
    for phase in kernel.phases:
        own = _symbols(phase)
        if own in seen:
            continue
        overlaps = any(own & other and not own <= other and not other <= own for other in seen)
        if overlaps and kept.isdisjoint(own):
            found[own] = {axis.symbol: _fresh(names) for axis in phase.axes}
        seen[own] = None
    return found


def _fresh(names: set[str]) -> Symbol:
    number = len(names)
    while f"i{number}" in names:
        number += 1
    names.add(f"i{number}")
    return symbol(f"i{number}")
