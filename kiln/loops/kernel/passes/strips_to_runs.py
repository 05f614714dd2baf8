"""Strips of units become the innermost, vectorised loop of each phase.

    kernel k(..) units (i0: s0, i1: 768) strip 256        run k_i1 < count_i1 <= 256 of i1
        local total: f32                                  local total(k_i1: 256): f32
        phase (i2: 64):                              =>   phase (i2: 64, k_i1: count_i1 vector):
            total[] = sum over (i2): load x[i2, i1]           total[k_i1] = sum over (i2): load x[i2, i1 + k_i1]

Where phases have no axes of their own and the kernel no locals, nothing limits a run: it is as long as the units allow.
A phase of a few points goes through them for each vector, so that what it accumulates stays in registers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.loops.body.analyses import accesses
from kiln.loops.body.body import BodyOp, Index, Load
from kiln.loops.body.indexing import Axis, stride_along
from kiln.loops.body.rename import Renaming, rename_body
from kiln.loops.kernel.analyses import phase_stores, with_indices
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.mapped import MappedKernel, RunRows, UnitRun
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol, is_static, product, substituted, symbol


@final
@dataclass(frozen=True, slots=True)
class StripsToRuns:
    name: str = "strips-to-runs"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        kernel = mapped.kernel
        return (_with_run(mapped, mapped.lanes_on(target)), 1) if kernel.strip and kernel.units else (mapped, 0)


def _with_run(mapped: MappedKernel, width: int) -> MappedKernel:
    kernel = mapped.kernel
    axis = kernel.units[-1]
    lane, count = symbol(f"k_{axis.symbol}"), symbol(f"count_{axis.symbol}")
    unlimited = len(kernel.phases) == 1 and not kernel.phases[0].axes and not kernel.locals
    rows = _rows(kernel, width) if unlimited else None
    moved: dict[Symbol, Int] = {axis.symbol: axis.symbol + lane}
    inner = [Axis(lane, count)]
    if rows is not None:
        moved[rows.axis.symbol] = rows.axis.symbol + rows.row
        inner.append(Axis(rows.row, rows.rows))
    change = _RunIndex(Renaming({}, moved), {local.name for local in kernel.locals}, lane)
    phases = tuple(change.phase(phase, tuple(inner), width) for phase in kernel.phases)
    locals_ = tuple(replace(local, axes=(*local.axes, Axis(lane, kernel.strip))) for local in kernel.locals)
    run = UnitRun(axis, lane, count, 0 if unlimited else kernel.strip, rows)
    return replace(mapped, kernel=replace(kernel, phases=phases, locals=locals_), run=run)


def _rows(kernel: KernelIR, width: int) -> RunRows | None:
    """The unit axis along which accesses are contiguous that are strided along the last unit axis: a transposition."""
    specs = {param.name: param.spec for param in kernel.params}
    lane = kernel.units[-1].symbol
    (phase,) = kernel.phases
    loads = [load for load in accesses(phase.body) if not load.conditional and load.buffer not in kernel.writes]
    touched = [(specs[load.buffer], load.index) for load in loads]
    touched += [(specs[store.target], store.index) for store in phase_stores(phase) if store.combine is None]
    apart = [(spec, index) for spec, index in touched if stride_along(spec, index, lane) not in (0, 1, None)]
    for axis in kernel.units[:-1]:
        if any(stride_along(spec, index, axis.symbol) == 1 for spec, index in apart):
            return RunRows(axis, symbol(f"row_{axis.symbol}"), symbol(f"rows_{axis.symbol}"), width)
    return None


@final
@dataclass(frozen=True, slots=True)
class _RunIndex:
    """Rewrites accesses: the unit becomes first unit plus lane, locals get the lane as their last index."""

    by: Renaming
    private: set[str]
    lane: Symbol

    def index(self, target: str, index: Index) -> Index:
        moved = self.by.index(index)
        return (*moved, self.lane) if target in self.private else moved

    def phase(self, phase: Phase, inner: tuple[Axis, ...], width: int) -> Phase:
        effects = tuple(with_indices(effect, self.index) for effect in phase.effects)
        axes = tuple(Axis(axis.symbol, substituted(axis.size, self.by.symbols)) for axis in phase.axes)
        body = rename_body(phase.body, self.by).mapped(self.op)
        points = product(axis.size for axis in axes)
        if axes and is_static(points) and points <= width:
            return Phase((*inner, *axes), body, effects, 0)
        return Phase((*axes, *inner), body, effects, len(axes))

    def op(self, op: BodyOp) -> BodyOp:
        return replace(op, index=(*op.index, self.lane)) if isinstance(op, Load) and op.buffer in self.private else op
