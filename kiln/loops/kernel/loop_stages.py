"""How far ahead the loops of a tiled kernel may load."""

from __future__ import annotations

from kiln.loops.body.analyses import accesses
from kiln.loops.body.body import Index
from kiln.loops.body.indexing import symbols_of
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.tiling import Tiling, block_points, dims_in

STAGES, STAGE_BYTES = 3, 96 * 1024
"""Turns of a loop that load ahead, and bytes of shared memory for them."""
BufferIndex = tuple[str, Index]
"""A buffer, and where it is read."""


def loop_stages(kernel: KernelIR, tiling: Tiling) -> int:
    """How many turns of a loop load ahead: three where shared memory holds as many blocks, else one.

    Two are slower than one: the next block is requested only once this one has arrived.
    """
    if not _may_overtake(kernel):
        return 1
    loops: dict[object, dict[BufferIndex, int]] = {}
    for phase in kernel.phases:
        loops.setdefault(tiling.in_shared_loop(phase) or phase, {}).update(_turn_loads(phase, tiling))
    most = max((sum(loads.values()) for loads in loops.values()), default=0)
    return STAGES if STAGES * most <= STAGE_BYTES else 1


def _may_overtake(kernel: KernelIR) -> bool:
    """May loads of later turns overtake stores: is what the kernel writes read only before it, and at the same index?

    Then no turn reads what another one writes: `io[i0, i1] = add(load io[i0, i1], ...)`.
    """
    stored: dict[str, tuple[set[Index], int]] = {}
    for position, phase in enumerate(kernel.phases):
        for store in phase_stores(phase):
            if store.combine is not None:
                return False
            stored.setdefault(store.target, (set(), position))[0].add(store.index)
    for position, phase in enumerate(kernel.phases):
        for access in accesses(phase.body):
            where, first = stored.get(access.buffer, ({access.index}, position))
            if where != {access.index} or position > first:
                return False
    return True


def _turn_loads(phase: Phase, tiling: Tiling) -> dict[BufferIndex, int]:
    """Bytes that one turn of the phase's loop loads from each place of a buffer: Triton keeps a block for each."""
    dims = dims_in(tiling.dims, phase)
    found: dict[BufferIndex, int] = {}
    for access in accesses(phase.body):
        used = symbols_of(*access.index)
        along = [dim for dim in dims if any(axis.symbol in used for axis in dim.axes)]
        if any(dim.looped for dim in along):
            found[access.buffer, access.index] = access.dtype.itemsize * block_points(along)
    return found
