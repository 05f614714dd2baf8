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

from kiln.loops.body.analyses import accesses
from kiln.loops.body.body import Index, Load, LoopBody
from kiln.loops.body.indexing import Axis, stride_along, substituted
from kiln.loops.body.rename import Renaming, rename_body
from kiln.loops.codegen.cpp.patterns import fuse_patterns
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Local, Phase, Store
from kiln.symbolic import Int, Range, Symbol, symbol


@final
@dataclass(frozen=True, slots=True)
class Tile:
    """Up to `longest` neighbours of unit axis `axis`."""

    axis: Axis
    row: Symbol
    rows: Symbol
    longest: int


@final
@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive units of the last unit axis that go through the phases together, in vectors.

    The first is `axis.symbol`; `lane` counts from it to `count` - 1. `longest`: 0 where nothing limits a run.
    `tile`: runs of `rows` neighbours of another unit axis go together, `row` counts them.
    """

    axis: Axis
    lane: Symbol
    count: Symbol
    longest: int
    tile: Tile | None = None


@final
@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel as the C++ writer takes it, and ranges of the symbols that preparing it introduced."""

    kernel: KernelIR
    run: Run | None
    ranges: dict[Symbol, Range]


def prepare(kernel: KernelIR, width: int) -> Prepared:
    """The kernel with explicit runs and a vector axis in each phase that has a good one; `width`: lanes."""
    kernel = fuse_patterns(kernel)
    if kernel.strip and kernel.units:
        return _with_run(kernel, width)
    phases = tuple(choose_vector(phase, kernel) for phase in kernel.phases)
    return Prepared(replace(kernel, phases=phases), None, {})


def _with_run(kernel: KernelIR, width: int) -> Prepared:
    axis = kernel.units[-1]
    lane, count = symbol(f"k_{axis.symbol}"), symbol(f"count_{axis.symbol}")
    alone = len(kernel.phases) == 1 and not kernel.phases[0].axes and not kernel.locals
    tile = _tile(kernel, width) if alone else None
    run = Run(axis, lane, count, 0 if alone else kernel.strip, tile)
    moved: dict[Symbol, Int] = {axis.symbol: axis.symbol + lane}
    inner = [Axis(lane, count)]
    top = kernel.strip if not alone else None
    ranges = {count: Range(1, top), lane: Range(0, None if top is None else top - 1)}
    if tile is not None:
        moved[tile.axis.symbol] = tile.axis.symbol + tile.row
        inner.append(Axis(tile.row, tile.rows))
        ranges |= {tile.rows: Range(1, width), tile.row: Range(0, width - 1)}
    change = _RunIndex(Renaming({}, moved), {one.name for one in kernel.locals}, lane)
    phases = tuple(change.phase(phase, tuple(inner)) for phase in kernel.phases)
    locals_ = tuple(Local(one.name, one.dtype, (*one.axes, Axis(lane, kernel.strip))) for one in kernel.locals)
    return Prepared(replace(kernel, phases=phases, locals=locals_), run, ranges)


def _tile(kernel: KernelIR, width: int) -> Tile | None:
    """The unit axis along which accesses have neighbours that lie apart along the last unit axis: a transposition."""
    specs = {one.name: one.spec for one in kernel.params}
    lane = kernel.units[-1].symbol
    (phase,) = kernel.phases
    loads = [one for one in accesses(phase.body) if not one.conditional and one.buffer not in kernel.writes]
    touched = [(specs[one.buffer], one.index) for one in loads]
    touched += [(specs[one.target], one.index) for one in phase_stores(phase) if one.combine is None]
    apart = [(spec, index) for spec, index in touched if stride_along(spec, index, lane) not in (0, 1, None)]
    for axis in kernel.units[:-1]:
        if any(stride_along(spec, index, axis.symbol) == 1 for spec, index in apart):
            return Tile(axis, symbol(f"row_{axis.symbol}"), symbol(f"rows_{axis.symbol}"), width)
    return None


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

    def phase(self, phase: Phase, inner: tuple[Axis, ...]) -> Phase:
        effects = tuple(self.effect(effect) for effect in phase.effects)
        body = rename_body(phase.body, self.by)
        ops = tuple(
            replace(op, index=(*op.index, self.lane)) if isinstance(op, Load) and op.buffer in self.private else op
            for op in body.ops
        )
        axes = tuple(Axis(axis.symbol, substituted(axis.size, self.by.symbols)) for axis in phase.axes)
        return Phase((*axes, *inner), LoopBody(ops, body.results), effects, len(axes))

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
