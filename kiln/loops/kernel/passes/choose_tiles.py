"""Chooses the blocks of a kernel for a GPU: what a program covers, what it loops over, how many warps it gets.

    kernel k(..) units (i0: 4096)            kernel k(..) units (i0: 4096)
        phase (i1: 50257):               =>      block (i1: 50257 by RBLOCK 8192 looped) numbers (i0) warps 16 ..
                                                 phase (i1: 50257):

A unit axis is a number (one value per program) or part of a block; an inner axis is whole (its block covers it) or
looped over. Axes that always occur together are flattened into one, so that blocks are full. Along the axis that is
contiguous in memory a block is as wide as a line of memory. `kiln/loops/kernel/tiling.py` shows the four kinds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.loops.body.indexing import Axis
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.errors import UnsupportedInKernel
from kiln.loops.kernel.facts import KernelFacts, bytes_ahead, code_length, has_rows, is_read_again
from kiln.loops.kernel.kernel import Accumulate, KernelIR
from kiln.loops.kernel.loop_stages import STAGE_BYTES, STAGES, loop_stages
from kiln.loops.kernel.mapped import MappedKernel
from kiln.loops.kernel.occupancy import floor_power, wanted_pieces
from kiln.loops.kernel.tiling import VECTOR_BYTES, WHOLE_BLOCK, BlockDim, Tiling, block_points, dims_in
from kiln.support.records import dataclass
from kiln.support.target import WARP, Target
from kiln.symbolic import Int, Symbol, is_static, product, symbol
from kiln.tensor.size_hint import large_size_hint

SECTOR_BYTES = 32
"""The smallest transfer from memory."""
LARGEST_BLOCK = 1 << 15
"""Elements that fit into the registers of a program."""
ROW_BLOCK = 2048
"""Elements to which short rows are grouped."""
LOOP_BLOCK = 4096
"""Most elements per turn of a loop."""
SHORTEST_TURN = 1024
"""Fewest elements that are worth a turn."""
INDEX_TURN = 2048
"""Most elements per turn of an index reduction: each has a value and an index in registers."""
FLIGHT_BYTES = 64
"""Bytes per thread that should be in flight."""
LONGEST_CODE = 128
"""Calls of functions, in exponentials, in the code of a thread: then its elements are fewer, down to one."""
SHORTEST_AXIS = 32
"""A shorter axis does not fill a warp: it is flattened with others even if that costs divisions."""
FEWEST_OF_PART = 1024
"""Elements of one part of a tensor that are worth programs of their own."""
_UNIT_NAMES = ("XBLOCK", "YBLOCK", "ZBLOCK")


@final
@dataclass(frozen=True, slots=True)
class ChooseTiles:
    """Raises `UnsupportedInKernel` where no block holds what a unit keeps."""

    name: str = "choose-tiles"

    def run(self, mapped: MappedKernel, target: Target) -> tuple[MappedKernel, int]:
        return replace(mapped, tiling=choose_tiles(mapped.kernel, target)), 1


def choose_tiles(kernel: KernelIR, target: Target) -> Tiling:
    """The blocks of `kernel`, and what follows from them."""
    facts = KernelFacts(kernel)
    tiling = _blocks(facts, target)
    largest = _most_points(facts, list(tiling.dims)) * facts.narrowest_bytes()
    return replace(
        tiling,
        unmasked=_unmasked(facts, tiling),
        stages=1 if _narrow_columns(facts, tiling) else loop_stages(kernel, tiling),
        layers=max(largest // (VECTOR_BYTES * WARP * tiling.warps), 1),
    )


def _blocks(facts: KernelFacts, target: Target) -> Tiling:
    inner = tuple(group for group in facts.inner_groups() if not facts.serial.issuperset(a.symbol for a in group))
    if not inner:
        return _pointwise(facts, target)
    contiguous = facts.contiguous()
    columns = next((axis for axis in facts.free_units if axis.symbol is contiguous), None)
    if columns is None or (has_rows(facts) and _leave_idle(facts, columns, target)):
        return _rows(facts, inner, target)
    return _columns(facts, inner, columns, target)


def _leave_idle(facts: KernelFacts, columns: Axis, target: Target) -> bool:
    """Do the narrowest blocks of columns leave most of the machine without work, and whole rows less of it?"""
    units = large_size_hint(product(axis.size for axis in (*facts.free_units, *facts.fixed_units)))
    narrowest = min(SECTOR_BYTES // facts.narrowest_bytes(), large_size_hint(columns.size))
    return 2 * units < target.multiprocessors * narrowest and narrowest > 1


def _unmasked(facts: KernelFacts, tiling: Tiling) -> BlockDim | None:
    """The contiguous unit dimension if its size is no multiple of an access and a loop goes through rows.

    The mask of its last block would narrow all accesses: full blocks run without one.
    """
    if not any(dim.looped for dim in tiling.dims):
        return None
    for dim in tiling.dims:
        if dim.unit and not dim.exact and is_static(dim.size) and dim.size > dim.block:
            odd = dim.size % (VECTOR_BYTES // facts.narrowest_bytes()) != 0
            return dim if odd and facts.contiguous() is dim.symbol else None
    return None


def _pointwise(facts: KernelFacts, target: Target) -> Tiling:
    """One flat dimension, or a tile if accesses are contiguous along different axes.

    An axis shorter than a sector of memory needs no tile: with it innermost, a warp reads and writes whole sectors.
    """
    chosen = facts.choosing_units()
    units = tuple(axis for axis in facts.free_units if axis not in chosen)
    if large_size_hint(product(axis.size for axis in units)) < FEWEST_OF_PART:
        chosen, units = (), facts.free_units
    tiled = facts.tile_axes(units)
    short = [axis for axis in tiled if is_static(axis.size) and axis.size * facts.narrowest_bytes() < SECTOR_BYTES]
    if len(tiled) - len(short) <= 1 and _is_flat(units, tiled):
        ordered = tuple(sorted(units, key=lambda axis: (axis in tiled) + (axis in short)))
        size = product(axis.size for axis in ordered)
        warps = 4
        block = _flat_block(facts, size, warps, target)
        dims = [_dim(ordered, block, "x", "XBLOCK", unit=True)] if ordered else []
        return _tiling(facts, dims, chosen, max(1, min(warps, block // 64)))
    if len(tiled) == 1:
        side = _flat_block(facts, tiled[0].size, 4, target)
    else:
        side = facts.line_elements() if len(tiled) == 2 else 16
        points = large_size_hint(product(axis.size for axis in units))
        while side > 16 and points < wanted_pieces(target) * side ** len(tiled):
            side //= 2
    dims = [
        _dim((axis,), min(side, _pow2(axis.size, side)), axis.symbol.name, name, unit=True)
        for axis, name in zip(reversed(tiled), reversed(_UNIT_NAMES[: len(tiled)]), strict=True)
    ]
    numbers = tuple(axis for axis in facts.free_units if axis not in tiled)
    return _tiling(facts, dims, numbers, _warps(block_points(dims)))


def _is_flat(units: tuple[Axis, ...], tiled: tuple[Axis, ...]) -> bool:
    """Does flattening cost only divisions by constants, or are the axes too short for a tile?"""
    if all(is_static(axis.size) for axis in units[1:]):
        return True
    return not tiled or (is_static(tiled[0].size) and tiled[0].size < SHORTEST_AXIS)


def _flat_block(facts: KernelFacts, size: Int, warps: int, target: Target) -> int:
    """Enough elements per thread to keep memory busy, few enough that all processors have work, and that their code,
    which is repeated for each, stays short."""
    room = max(LONGEST_CODE // max(code_length(facts.kernel), 1), 1)
    widest = min(VECTOR_BYTES // facts.narrowest_bytes(), floor_power(room))
    each = max(widest, min(16, floor_power(room), floor_power(FLIGHT_BYTES // max(facts.loaded_bytes(), 1))))
    block = WARP * warps * each
    if is_static(size):
        while block > WARP * warps * widest and size < wanted_pieces(target) * block:
            block //= 2
        block = min(block, max(_pow2(size, block), 1))
    return block


def _rows(facts: KernelFacts, groups: tuple[tuple[Axis, ...], ...], target: Target) -> Tiling:
    """Memory is contiguous along inner axes: whole rows, several at a time if they are short."""
    dims = _inner_dims(facts, groups, *_row_blocks(facts, groups))
    points = _most_points(facts, dims)
    units = facts.free_units
    rows = 1
    if units and points < ROW_BLOCK and not any(dim.looped and not is_static(dim.size) for dim in dims):
        rows = ROW_BLOCK // points
        count = product(axis.size for axis in units)
        if is_static(count):
            while rows > 1 and count < wanted_pieces(target) * rows:
                rows //= 2
            rows = min(rows, _pow2(count, rows))
    warps = _loading_warps(facts, points * rows)
    if rows == 1:
        return _tiling(facts, dims, units, warps)
    return _tiling(facts, [_dim(units, rows, "x", "XBLOCK", unit=True), *dims], (), warps)


def _row_blocks(facts: KernelFacts, groups: tuple[tuple[Axis, ...], ...]) -> tuple[int, int]:
    """Most elements of a row that is loaded whole, and of a turn of a loop: shared memory holds a few."""
    if len(groups) > 1 or facts.is_kept(groups[0]):
        whole = LOOP_BLOCK
    else:
        points = product(axis.size for axis in groups[0])
        kept = is_read_again(facts.kernel, groups[0]) and is_static(points) and points <= LARGEST_BLOCK
        whole = LARGEST_BLOCK if kept else WHOLE_BLOCK
    room = floor_power(STAGE_BYTES // (STAGES * max(bytes_ahead(facts), 1)))
    return whole, min(whole, max(room, SHORTEST_TURN), INDEX_TURN if _finds_indices(facts.kernel) else LARGEST_BLOCK)


def _finds_indices(kernel: KernelIR) -> bool:
    effects = [effect for phase in kernel.phases for effect in phase.effects]
    return any(isinstance(effect, Accumulate) and not effect.op.is_splittable for effect in effects)


def _columns(facts: KernelFacts, groups: tuple[tuple[Axis, ...], ...], axis: Axis, target: Target) -> Tiling:
    """Memory is contiguous along a unit axis: a block of neighbours along it, times blocks of the reduced axes."""
    numbers = tuple(unit for unit in facts.free_units if unit is not axis)
    wide = _pow2(axis.size, facts.line_elements() << (facts.access_elements() == 1))  # two lines if they start anywhere
    rest = large_size_hint(product(unit.size for unit in (*numbers, *facts.fixed_units)))
    length = large_size_hint(axis.size)
    while wide * facts.narrowest_bytes() > SECTOR_BYTES and rest * -(-length // wide) < target.multiprocessors:
        wide //= 2
    again = any(is_read_again(facts.kernel, group) for group in groups)
    rows = max((WHOLE_BLOCK if again else LOOP_BLOCK) // wide, 1)
    dims = _inner_dims(facts, groups, rows, max(LOOP_BLOCK // wide, 1))
    units, wide = _short_columns(facts, dims, axis, wide, target)
    columns = _dim(units, wide, axis.symbol.name if len(units) == 1 else "x", "XBLOCK", unit=True)
    numbers = tuple(unit for unit in numbers if unit not in units)
    points = block_points([columns, *dims])
    looped = any(dim.looped for dim in dims)
    return _tiling(facts, [columns, *dims], numbers, _warps(points) if looped else _loading_warps(facts, points))


def _narrow_columns(facts: KernelFacts, tiling: Tiling) -> bool:
    """Columns that are read element by element: loading ahead would take an instruction for each, and shared memory
    that Triton lays out along the other dimension of a block. Enough loads are in flight without."""
    contiguous = facts.contiguous()
    columns = any(dim.unit and any(axis.symbol is contiguous for axis in dim.axes) for dim in tiling.dims)
    return columns and facts.access_elements() == 1


def _short_columns(
    facts: KernelFacts, dims: list[BlockDim], axis: Axis, wide: int, target: Target
) -> tuple[tuple[Axis, ...], int]:
    """The unit axes along which a block lies, and how wide it is: columns of few elements are taken many at a time, of
    several other units too where the contiguous axis is short."""
    points = _most_points(facts, dims)
    units = (*(unit for unit in facts.free_units if unit is not axis), axis)
    count = product(unit.size for unit in units)
    if any(dim.looped for dim in dims) or points * wide >= ROW_BLOCK or not is_static(count):
        return (axis,), wide
    widest = max(ROW_BLOCK // points, wide)
    while widest > wide and count < wanted_pieces(target) * widest:
        widest //= 2
    if len(units) == 1 or (is_static(axis.size) and axis.size >= widest):
        return (axis,), min(widest, _pow2(axis.size, widest))
    return (units, widest) if widest > wide else ((axis,), wide)


def _inner_dims(facts: KernelFacts, groups: tuple[tuple[Axis, ...], ...], most: int, turn: int) -> list[BlockDim]:
    """Whole dimensions if they fit into a block of `most` elements; else loops, `turn` elements at a time, over those
    of which nothing is kept."""
    dims = [_inner_dim(facts, group, position, len(groups)) for position, group in enumerate(groups)]
    if all(dim.block for dim in dims) and _most_points(facts, dims) <= most:
        return dims
    kept = [dim for dim in dims if facts.is_kept(dim.axes)]
    shared = next((dim for dim in kept if facts.shared_phases(dim.axes) is not None), None)
    whole = [dim for dim in kept if dim is not shared]
    if not all(dim.block for dim in whole) or block_points(whole) > LARGEST_BLOCK:
        raise UnsupportedInKernel(language="Triton", thing="a row this long", reason="registers cannot hold it")
    found: dict[Symbol, BlockDim] = {dim.symbol: dim for dim in whole}
    for dim in reversed(dims):
        if dim not in whole:
            beside = [item for item in found.values() if facts.share_a_phase(item.axes, dim.axes)]
            room = max(turn // block_points(beside), 1)
            block = min(dim.block or room, room)
            found[dim.symbol] = replace(dim, block=block, looped=dim.block != block)
    return [found[dim.symbol] for dim in dims]


def _inner_dim(facts: KernelFacts, group: tuple[Axis, ...], position: int, count: int) -> BlockDim:
    """The whole group as one dimension; block 0 if its size is unknown."""
    size = product(axis.size for axis in group)
    longest = facts.bounds.of(size).hi
    block = 0 if longest is None else _pow2(longest, 1 << 40)
    suffix = "" if count == 1 else str(position)
    return _dim(group, block, f"r{suffix}", f"RBLOCK{suffix}")


def _dim(axes: tuple[Axis, ...], block: int, flat_name: str, name: str, *, unit: bool = False) -> BlockDim:
    if len(axes) == 1:
        return BlockDim(axes[0].symbol, axes[0].size, axes, block, name, unit)
    return BlockDim(symbol(flat_name), product(axis.size for axis in axes), axes, block, name, unit)


def _tiling(facts: KernelFacts, dims: list[BlockDim], numbers: tuple[Axis, ...], warps: int) -> Tiling:
    values: dict[Symbol, Int] = {}
    for dim in dims:
        if len(dim.axes) > 1:
            values |= _parts(dim)
    shared = [dim for dim in dims if dim.looped and facts.is_kept(dim.axes)]
    if len(shared) > 1:
        raise UnsupportedInKernel(language="Triton", thing="this kernel", reason="its phases need two shared loops")
    numbers = (*facts.fixed_units, *numbers)
    ordered = tuple(axis for axis in facts.kernel.units if axis in numbers)
    return Tiling(tuple(dims), ordered, facts.serial, shared[0] if shared else None, values, warps)


def _parts(dim: BlockDim) -> dict[Symbol, Int]:
    """The axes of a flattened dimension as expressions of its index."""
    found: dict[Symbol, Int] = {}
    below: Int = 1
    for position, axis in reversed(list(enumerate(dim.axes))):
        part = dim.symbol // below
        found[axis.symbol] = part % axis.size if position else part
        below = below * axis.size
    return found


def _most_points(facts: KernelFacts, dims: list[BlockDim]) -> int:
    return max(block_points(dims_in(dims, phase)) for phase in facts.kernel.phases)


def _warps(points: int) -> int:
    """Eight to sixteen elements per thread; more only if a program would have more than 16 warps."""
    if points <= 2048:
        return max(1, min(4, points // 256))
    return min(16 if points <= 16384 else 32, points // 512)


def _loading_warps(facts: KernelFacts, points: int) -> int:
    """Fewer warps for long rows and whole columns, if a thread needs more elements to keep enough bytes in flight.

    Twice as many elements if no row is stored, as programs then wait only for loads and each other. Of columns every
    warp gives partial results, which are combined through shared memory.
    """
    if points <= ROW_BLOCK:
        return _warps(points)
    stores = any(phase.axes and phase_stores(phase) for phase in facts.kernel.phases)
    flight = FLIGHT_BYTES if stores else 2 * FLIGHT_BYTES
    each = floor_power(flight // max(facts.loaded_bytes(), 1))
    return max(min(_warps(points), points // (WARP * each)), 1)


def _pow2(size: Int, most: int) -> int:
    """The smallest power of two that is at least `size`, at most `most`."""
    if not is_static(size):
        return most
    return max(1, min(most, 1 << (size - 1).bit_length() if size > 0 else 1))
