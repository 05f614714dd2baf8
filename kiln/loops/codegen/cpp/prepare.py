"""Kernels made ready for C++: strips of units become the innermost loop of each phase, vector axes are chosen.

    kernel k(..) units (i0: s0, i1: 768) strip 256        units (i0: s0, runs of i1)
        local total: f32                                      local total(k1: 256): f32
        phase (i2: 64):                              =>       phase (i2: 64, k1: k1_count vector):
            total[] = sum over (i2): load x[i2, i1]               total[k1] = sum over (i2): load x[i2, i1 + k1]

A kernel whose phases have no inner axes and no locals needs no strips: a run is then as long as the units allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from kiln.loops.ir.analyses import accesses, phase_stores, stride_along
from kiln.loops.ir.body import Index, Load, LoopBody
from kiln.loops.ir.indexing import substituted
from kiln.loops.ir.kernel import Accumulate, KernelIR, Local, Phase, Store
from kiln.loops.ir.nodes import Axis
from kiln.loops.ir.rename import Renaming, rename_body
from kiln.symbolic import Int, Range, Symbol, symbol


@final
@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive units of the last unit axis that go through the phases together, in vectors.

    The first is `axis.symbol`; `lane` counts from it to `count` - 1. `longest`: 0 where nothing limits a run.
    """

    axis: Axis
    lane: Symbol
    count: Symbol
    longest: int


@final
@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel as the C++ writer takes it, and ranges of the symbols that preparing it introduced."""

    kernel: KernelIR
    run: Run | None
    ranges: dict[Symbol, Range]


def prepare(kernel: KernelIR) -> Prepared:
    """The kernel with explicit runs and a vector axis in each phase that has a good one."""
    if kernel.strip and kernel.units:
        return _with_run(kernel)
    phases = tuple(choose_vector(phase, kernel) for phase in kernel.phases)
    return Prepared(replace(kernel, phases=phases), None, {})


def _with_run(kernel: KernelIR) -> Prepared:
    axis = kernel.units[-1]
    lane, count = symbol(f"k_{axis.symbol}"), symbol(f"count_{axis.symbol}")
    alone = len(kernel.phases) == 1 and not kernel.phases[0].axes and not kernel.locals
    run = Run(axis, lane, count, 0 if alone else kernel.strip)
    private = {one.name for one in kernel.locals}
    inner = Axis(lane, count)
    change = _RunIndex(Renaming({}, {axis.symbol: axis.symbol + lane}), private, lane)
    phases = tuple(change.phase(phase, inner) for phase in kernel.phases)
    locals_ = tuple(Local(one.name, one.dtype, (*one.axes, Axis(lane, kernel.strip))) for one in kernel.locals)
    ranges = {
        count: Range(1, kernel.strip if not alone else None),
        lane: Range(0, kernel.strip - 1 if not alone else None),
    }
    return Prepared(replace(kernel, phases=phases, locals=locals_), run, ranges)


@final
@dataclass(frozen=True, slots=True)
class _RunIndex:
    """Rewrites accesses: the unit becomes first unit plus lane, locals get the lane as last index."""

    by: Renaming
    private: set[str]
    lane: Symbol

    def index(self, target: str, index: Index) -> Index:
        moved = self.by.index(index)
        return (*moved, self.lane) if target in self.private else moved

    def phase(self, phase: Phase, inner: Axis) -> Phase:
        effects = tuple(self.effect(effect) for effect in phase.effects)
        body = rename_body(phase.body, self.by)
        ops = tuple(
            replace(op, index=(*op.index, self.lane)) if isinstance(op, Load) and op.buffer in self.private else op
            for op in body.ops
        )
        axes = tuple(Axis(axis.symbol, substituted(axis.size, self.by.symbols)) for axis in phase.axes)
        return Phase((*axes, inner), LoopBody(ops, body.results), effects, len(axes))

    def effect(self, effect: Store | Accumulate) -> Store | Accumulate:
        moved = replace(effect, index=self.index(effect.target, effect.index))
        if isinstance(moved, Accumulate) and moved.running is not None:
            running = moved.running
            moved = replace(moved, running=replace(running, index=self.index(running.target, running.index)))
        return moved


def choose_vector(phase: Phase, kernel: KernelIR) -> Phase:
    """`phase` with a vector axis: the innermost one along which memory is read or written in order."""
    if phase.vector is not None or not phase.axes:
        return phase
    last = len(phase.axes) - 1
    steps = _steps(phase, phase.axes[last].symbol, kernel)
    good = steps.count(1)
    return replace(phase, vector=last) if good and good >= len(steps) - steps.count(0) - good else phase


def _steps(phase: Phase, along: Symbol, kernel: KernelIR) -> Sequence[Int | None]:
    """Distances between neighbours along an axis, for every access to a buffer."""
    specs = {one.name: one.spec for one in kernel.params}
    touched = [(one.buffer, one.index) for one in accesses(phase.body)]
    touched += [(one.target, one.index) for one in phase_stores(phase)]
    return [stride_along(specs[name], index, along) for name, index in touched if name in specs]
