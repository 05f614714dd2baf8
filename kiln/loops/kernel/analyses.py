"""Questions about phases and kernels: what they write and read, which sizes they need."""

from __future__ import annotations

from kiln.loops.body.analyses import accesses, bound_symbols, free_symbols
from kiln.loops.body.indexing import symbols_of
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase, Store
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


def kernel_reads(kernel: KernelIR) -> frozenset[str]:
    """Parameters that the kernel loads from or combines into."""
    names = {load.buffer for phase in kernel.phases for load in accesses(phase.body)}
    names |= {store.target for phase in kernel.phases for store in phase_stores(phase) if store.combine is not None}
    return frozenset(param.name for param in kernel.params if param.name in names)


def kernel_symbols(kernel: KernelIR) -> frozenset[Symbol]:
    """Size symbols that the kernel needs: free symbols that no axis and no indirect binds."""
    used: frozenset[Symbol] = symbols_of(*(axis.size for axis in kernel.units))
    bound = {axis.symbol for axis in kernel.units}
    for local in kernel.locals:
        used |= symbols_of(*(axis.size for axis in local.axes))
    touched: set[str] = set()
    for phase in kernel.phases:
        bound |= {axis.symbol for axis in phase.axes} | bound_symbols(phase.body)
        used |= symbols_of(*(axis.size for axis in phase.axes)) | free_symbols(phase.body)
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
