"""Questions about phases and kernels: what they write and read, which sizes they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kiln.loops.body.analyses import accesses, bound_symbols, free_symbols
from kiln.loops.body.body import Index
from kiln.loops.body.indexing import counted, symbols_of
from kiln.loops.kernel.kernel import Accumulate, Effect, KernelIR, Phase, Store
from kiln.symbolic import Int, Symbol, ceil_div, product


def phase_writes(phase: Phase) -> tuple[str, ...]:
    """Buffers and locals that a phase writes."""
    names = []
    for effect in phase.effects:
        names.append(effect.target)
        if isinstance(effect, Accumulate) and effect.running is not None:
            names.append(effect.running.target)
        if isinstance(effect, Accumulate) and effect.exp_sum is not None:
            names.append(effect.exp_sum)
    return tuple(dict.fromkeys(names))


def phase_stores(phase: Phase) -> tuple[Store, ...]:
    """All stores of a phase, those of scans included."""
    found = []
    for effect in phase.effects:
        store = effect if isinstance(effect, Store) else effect.running
        if store is not None:
            found.append(store)
    return tuple(found)


def phase_accesses(phase: Phase) -> list[tuple[str, Index]]:
    """The buffer or local, and the index, of each load and store of a phase."""
    loads = [(load.buffer, load.index) for load in accesses(phase.body)]
    return loads + [(store.target, store.index) for store in phase_stores(phase)]


def with_indices(effect: Effect, index: Callable[[str, Index], Index]) -> Effect:
    """`effect` with the indices that `index` gives for a target and its old index."""
    moved = replace(effect, index=index(effect.target, effect.index))
    if isinstance(moved, Accumulate) and (running := moved.running) is not None:
        return replace(moved, running=replace(running, index=index(running.target, running.index)))
    return moved


def size_arguments(kernel: KernelIR) -> frozenset[Symbol]:
    """The numbers that a kernel takes and that count elements. Others, which data or a caller give, may be negative."""
    axes = [*kernel.units, *[axis for phase in kernel.phases for axis in phase.axes]]
    counts = [axis.size for axis in axes]
    for param in kernel.params:
        counts += [*param.spec.sizes, *param.spec.strides]
    return frozenset([symbol for count in counts for symbol in counted(count)])


def kernel_reads(kernel: KernelIR) -> frozenset[str]:
    """Parameters that the kernel loads from or combines into."""
    names = {load.buffer for phase in kernel.phases for load in accesses(phase.body)}
    names |= {store.target for phase in kernel.phases for store in phase_stores(phase) if store.combine is not None}
    return frozenset(param.name for param in kernel.params if param.name in names)


def kernel_symbols(kernel: KernelIR) -> frozenset[Symbol]:
    """Size symbols that the kernel needs: free symbols that no axis and no indirect binds."""
    loops = [*kernel.units, *(axis for phase in kernel.phases for axis in phase.axes)]
    bound = {axis.symbol for axis in loops}
    used = symbols_of(*(axis.size for axis in (*loops, *(axis for local in kernel.locals for axis in local.axes))))
    touched: set[str] = set()
    for phase in kernel.phases:
        bound |= bound_symbols(phase.body)
        used |= free_symbols(phase.body)
        for store in phase_stores(phase):
            used |= symbols_of(*store.index)
        for effect in phase.effects:
            used |= symbols_of(*effect.index)
        touched |= {load.buffer for load in accesses(phase.body)} | set(phase_writes(phase))
    for param in kernel.params:
        if param.name in touched:
            used |= symbols_of(*param.spec.strides)
    return used - bound


def launch_units(kernel: KernelIR) -> Int:
    """Points of the unit axes in row-major order, the last axis counted in strips if the kernel has them."""
    sizes = [axis.size for axis in kernel.units]
    if kernel.strip and sizes:
        sizes[-1] = ceil_div(sizes[-1], kernel.strip)
    return product(sizes)


def launch_grain(kernel: KernelIR) -> Int:
    """The grain of a kernel in units of its launch: strips where it has them."""
    return ceil_div(kernel.grain, kernel.strip) if kernel.strip and kernel.units else kernel.grain
