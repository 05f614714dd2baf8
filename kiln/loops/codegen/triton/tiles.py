"""How the axes of a kernel become blocks: what a program covers, what it loops over, how many warps it gets.

    units (i0: n0), phase (i1: 768)             one row per program     i0 = pid        i1 = [0, 1024)
    units (i0: n0), phase (i1: 48)              16 rows per program     i0: XBLOCK      i1: RBLOCK, whole
    units (i0: 768), phase (i1: n0), x[i1, i0]  64 columns at a time    i0: XBLOCK      i1: RBLOCK, in a loop
    units (i0: 64, i1: n0), x[i1, i0], y[i0, i1]   a tile               i0: YBLOCK      i1: XBLOCK

A unit axis is a number (one value per program) or part of a block; an inner axis is whole (its block covers it) or
looped over. Axes that always occur together are flattened into one, so that blocks are full. A block is as wide as
memory is wide along the axis with neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import final

from kiln.loops.body.analyses import accesses
from kiln.loops.body.body import Index
from kiln.loops.body.indexing import Axis, symbols_of
from kiln.loops.codegen.dialect import UnsupportedInKernel
from kiln.loops.codegen.triton.facts import Facts, is_read_again
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.occupancy import floor_power, wanted_pieces
from kiln.support.target import WARP, Target
from kiln.symbolic import Int, Symbol, is_static, product, symbol
from kiln.tensor.size_hint import large_size_hint

VECTOR_BYTES = 16
"""The widest access."""
SECTOR_BYTES = 32
"""The least that memory hands over."""
LARGEST_BLOCK = 1 << 15
"""Elements that the registers of one program can hold."""
ROW_BLOCK = 2048
"""Elements that short rows are put together to."""
WHOLE_BLOCK = 8192
"""Elements of a row that is loaded at once though it might be looped over."""
LOOP_BLOCK = 4096
"""Elements per turn of a loop at most."""
SHORTEST_TURN = 1024
"""Elements that are worth a turn of their own."""
STAGES, STAGE_BYTES = 3, 96 * 1024
"""Turns of a loop that load ahead, and bytes of shared memory for them."""
FLIGHT_BYTES = 64
"""Bytes per thread that should be on their way."""
SHORTEST_AXIS = 32
"""An axis that fills no warp is flattened with others even where that costs divisions."""
_UNIT_NAMES = ("XBLOCK", "YBLOCK", "ZBLOCK")


@final
@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of the blocks of a kernel: `axes` flattened (the last fastest), `block` neighbours at a time.

    `unit`: programs divide it; otherwise a program goes through all of it, in a loop if `looped`.
    """

    symbol: Symbol
    size: Int
    axes: tuple[Axis, ...]
    block: int
    name: str
    unit: bool = False
    looped: bool = False

    @property
    def exact(self) -> bool:
        """Is no block partly empty? That of a dimension without elements is."""
        point_by_point = self.block == 1 and (self.looped or self.unit)
        return point_by_point or (is_static(self.size) and self.size > 0 and self.size % self.block == 0)


@final
@dataclass(frozen=True, slots=True)
class Tiling:
    """`dims`: of all blocks, in order. `numbers`: unit axes with one value per program. `serial`: inner axes that run
    point after point. `shared`: the looped dimension whose loop holds several phases. `values`: flattened axes."""

    dims: tuple[Dim, ...]
    numbers: tuple[Axis, ...]
    serial: frozenset[Symbol]
    shared: Dim | None
    values: Mapping[Symbol, Int]
    warps: int

    def dim_of(self, axis: Axis) -> int | None:
        """The dimension that an axis is part of."""
        return next((place for place, dim in enumerate(self.dims) if axis in dim.axes), None)


def plan_tiles(kernel: KernelIR, target: Target) -> Tiling:
    """The blocks of `kernel`. Raises `UnsupportedInKernel` where no block holds what a unit keeps."""
    facts = Facts(kernel)
    inner = tuple(group for group in facts.inner_groups() if not facts.serial.issuperset(a.symbol for a in group))
    if not inner:
        return _pointwise(facts, target)
    contiguous = facts.contiguous()
    if contiguous is not None and any(contiguous is axis.symbol for axis in facts.free_units):
        return _columns(facts, inner, contiguous, target)
    return _rows(facts, inner, target)


def loop_stages(kernel: KernelIR, tiling: Tiling) -> int:
    """How many turns of a loop load ahead: three, where shared memory has room for as many blocks, or one.

    Two are slower than one: the next block is asked for only when this one is there. Loads overtake stores.
    """
    if not _may_overtake(kernel):
        return 1
    loops: dict[object, dict[str, int]] = {}
    for phase in kernel.phases:
        is_shared = tiling.shared is not None and set(tiling.shared.axes) <= set(phase.axes)
        loops.setdefault(is_shared or phase, {}).update(_turn_loads(phase, tiling))
    most = max((sum(loads.values()) for loads in loops.values()), default=0)
    return STAGES if STAGES * most <= STAGE_BYTES else 1


def _may_overtake(kernel: KernelIR) -> bool:
    """Is all that the kernel writes read, if at all, before and where it is written?

    Then no turn reads what another one writes: `io[i0, i1] = add(load io[i0, i1], ...)`.
    """
    stored: dict[str, tuple[set[Index], int]] = {}
    for place, phase in enumerate(kernel.phases):
        for store in phase_stores(phase):
            if store.combine is not None:
                return False
            stored.setdefault(store.target, (set(), place))[0].add(store.index)
    for place, phase in enumerate(kernel.phases):
        for one in accesses(phase.body):
            where, first = stored.get(one.buffer, ({one.index}, place))
            if where != {one.index} or place > first:
                return False
    return True


def block_layers(kernel: KernelIR, tiling: Tiling) -> int:
    """By how many of the widest accesses a thread takes its part of the largest block."""
    facts = Facts(kernel)
    bytes_ = _most_points(facts, list(tiling.dims)) * facts.narrowest_bytes()
    return max(bytes_ // (VECTOR_BYTES * WARP * tiling.warps), 1)


def _turn_loads(phase: Phase, tiling: Tiling) -> dict[str, int]:
    """Bytes that one turn of the phase's loop loads from each buffer."""
    dims = [dim for dim in tiling.dims if dim.unit or set(dim.axes) <= set(phase.axes)]
    found: dict[str, int] = {}
    for one in accesses(phase.body):
        used = symbols_of(*one.index)
        along = [dim for dim in dims if any(axis.symbol in used for axis in dim.axes)]
        if any(dim.looped for dim in along):
            found[one.buffer] = max(found.get(one.buffer, 0), one.dtype.itemsize * _points(along))
    return found


# ------------------------------------------------------------------------------------------------ pointwise


def _pointwise(facts: Facts, target: Target) -> Tiling:
    """One flat dimension, or a tile where accesses have neighbours along different axes."""
    units = facts.free_units
    tiled = facts.tile_axes(units)
    flat = len(tiled) <= 1 and _is_flat(units, tiled)
    if flat:
        last = set(tiled)
        ordered = tuple(sorted(units, key=lambda axis: axis in last))
        size = product(axis.size for axis in ordered)
        warps = 4
        block = _flat_block(facts, size, warps, target)
        dims = [_dim(ordered, block, "x", "XBLOCK", unit=True)] if ordered else []
        return _tiling(facts, dims, (), max(1, min(warps, block // 64)))
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
    return _tiling(facts, dims, tuple(axis for axis in units if axis not in tiled), _warps(_points(dims)))


def _is_flat(units: tuple[Axis, ...], tiled: tuple[Axis, ...]) -> bool:
    """Are the divisions that take a flat index apart by constants, or the axes too short to do without?"""
    if len(units) <= 1 or all(is_static(axis.size) for axis in units[1:]):
        return True
    return not tiled or (is_static(tiled[0].size) and tiled[0].size < SHORTEST_AXIS)


def _flat_block(facts: Facts, size: Int, warps: int, target: Target) -> int:
    """So many elements per thread that enough bytes are on their way, but all processors have work."""
    widest = VECTOR_BYTES // facts.narrowest_bytes()
    each = max(widest, min(16, floor_power(FLIGHT_BYTES // max(facts.loaded_bytes(), 1))))
    block = WARP * warps * each
    if is_static(size):
        while block > WARP * warps * widest and size < wanted_pieces(target) * block:
            block //= 2
        block = min(block, max(_pow2(size, block), 1))
    return block


# ------------------------------------------------------------------------------------------------ reductions


def _rows(facts: Facts, groups: tuple[tuple[Axis, ...], ...], target: Target) -> Tiling:
    """Memory is contiguous along inner axes: whole rows, several at a time where they are short."""
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
    warps = _row_warps(facts, points * rows)
    if rows == 1:
        return _tiling(facts, dims, units, warps)
    return _tiling(facts, [_dim(units, rows, "x", "XBLOCK", unit=True), *dims], (), warps)


def _row_blocks(facts: Facts, groups: tuple[tuple[Axis, ...], ...]) -> tuple[int, int]:
    """Elements that a program takes at once: all of a row that several phases read, if registers hold it.

    And those of a turn, if it has to go in turns: so few that shared memory holds the next turns.
    """
    if len(groups) > 1 or facts.is_kept(groups[0]):
        whole = LOOP_BLOCK
    else:
        points = product(axis.size for axis in groups[0])
        kept = is_read_again(facts.kernel, groups[0]) and is_static(points) and points <= LARGEST_BLOCK
        whole = LARGEST_BLOCK if kept else WHOLE_BLOCK
    room = floor_power(STAGE_BYTES // (STAGES * max(facts.loaded_bytes(), 1)))
    return whole, min(whole, max(room, SHORTEST_TURN))


def _columns(facts: Facts, groups: tuple[tuple[Axis, ...], ...], along: Symbol, target: Target) -> Tiling:
    """Memory is contiguous along a unit axis: neighbours along it go together, through blocks of the reduced axes."""
    (axis,) = (one for one in facts.free_units if one.symbol is along)
    numbers = tuple(one for one in facts.free_units if one is not axis)
    wide = _pow2(axis.size, facts.line_elements())
    rest = large_size_hint(product(one.size for one in (*numbers, *facts.fixed_units)))
    length = large_size_hint(axis.size)
    while wide * facts.narrowest_bytes() > SECTOR_BYTES and rest * -(-length // wide) < target.multiprocessors:
        wide //= 2
    rows = max(LOOP_BLOCK // wide, 1)
    dims = _inner_dims(facts, groups, rows, rows)
    dims = [_dim((axis,), wide, along.name, "XBLOCK", unit=True), *dims]
    return _tiling(facts, dims, numbers, _warps(_points(dims)))


def _inner_dims(facts: Facts, groups: tuple[tuple[Axis, ...], ...], most: int, turn: int) -> list[Dim]:
    """Whole dimensions if they fit into a block of `most` elements; else loops over those of which nothing is kept,
    `turn` elements at a time."""
    dims = [_inner_dim(facts, group, place, len(groups)) for place, group in enumerate(groups)]
    if all(dim.block for dim in dims) and _most_points(facts, dims) <= most:
        return dims
    kept = [dim for dim in dims if facts.is_kept(dim.axes)]
    shared = next((dim for dim in kept if facts.shared_phases(dim.axes) is not None), None)
    whole = [dim for dim in kept if dim is not shared]
    if not all(dim.block for dim in whole) or _points(whole) > LARGEST_BLOCK:
        raise UnsupportedInKernel(language="Triton", thing="so long a row", reason="registers hold no such block")
    found: dict[Symbol, Dim] = {dim.symbol: dim for dim in whole}
    for dim in reversed(dims):
        if dim not in whole:
            beside = [one for one in found.values() if facts.share_a_phase(one.axes, dim.axes)]
            room = max(turn // _points(beside), 1)
            block = min(dim.block or room, room)
            found[dim.symbol] = replace(dim, block=block, looped=dim.block != block)
    return [found[dim.symbol] for dim in dims]


def _inner_dim(facts: Facts, group: tuple[Axis, ...], place: int, count: int) -> Dim:
    """The whole group as one dimension; block 0: its size is not known."""
    size = product(axis.size for axis in group)
    longest = facts.bounds.of(size).hi
    block = 0 if longest is None else _pow2(longest, 1 << 40)
    suffix = "" if count == 1 else str(place)
    made = _dim(group, 1, f"r{suffix}", f"RBLOCK{suffix}")
    return replace(made, block=block)


# ------------------------------------------------------------------------------------------------ parts


def _dim(axes: tuple[Axis, ...], block: int, flat_name: str, name: str, *, unit: bool = False) -> Dim:
    """A single axis keeps its symbol."""
    if len(axes) == 1:
        return Dim(axes[0].symbol, axes[0].size, axes, block, name, unit)
    return Dim(symbol(flat_name), product(axis.size for axis in axes), axes, block, name, unit)


def _tiling(facts: Facts, dims: list[Dim], numbers: tuple[Axis, ...], warps: int) -> Tiling:
    values: dict[Symbol, Int] = {}
    for dim in dims:
        if len(dim.axes) > 1:
            values |= _parts(dim)
    shared = [dim for dim in dims if dim.looped and facts.is_kept(dim.axes)]
    if len(shared) > 1:
        raise UnsupportedInKernel(language="Triton", thing="this kernel", reason="two loops would hold its phases")
    numbers = (*facts.fixed_units, *numbers)
    ordered = tuple(axis for axis in facts.kernel.units if axis in numbers)
    return Tiling(tuple(dims), ordered, facts.serial, shared[0] if shared else None, values, warps)


def _parts(dim: Dim) -> dict[Symbol, Int]:
    """The axes of a flattened dimension as expressions of its index."""
    found: dict[Symbol, Int] = {}
    below: Int = 1
    for place, axis in reversed(list(enumerate(dim.axes))):
        part = dim.symbol // below
        found[axis.symbol] = part % axis.size if place else part
        below = below * axis.size
    return found


def _points(dims: Iterable[Dim]) -> int:
    total = 1
    for dim in dims:
        total *= dim.block
    return total


def _most_points(facts: Facts, dims: list[Dim]) -> int:
    """Elements of the largest block of a phase."""
    phases = facts.kernel.phases
    return max(_points(dim for dim in dims if dim.unit or set(dim.axes) <= set(phase.axes)) for phase in phases)


def _warps(points: int) -> int:
    """Eight to sixteen elements per thread, more only where a program would have more than 16 warps."""
    if points <= 2048:
        return max(1, min(4, points // 256))
    return min(16 if points <= 16384 else 32, points // 512)


def _row_warps(facts: Facts, points: int) -> int:
    """Fewer for long rows where a thread has to load more elements for enough bytes to be on their way.

    Twice as many bytes where no row is stored: then programs wait for loads and for each other only.
    """
    if points <= ROW_BLOCK:
        return _warps(points)
    stores = any(phase.axes and phase_stores(phase) for phase in facts.kernel.phases)
    flight = FLIGHT_BYTES if stores else 2 * FLIGHT_BYTES
    each = floor_power(flight // max(facts.loaded_bytes(), 1))
    return max(min(_warps(points), points // (WARP * each)), 1)


def _pow2(size: Int, most: int) -> int:
    """The smallest power of two from `size` on, at most `most`."""
    if not is_static(size):
        return most
    return max(1, min(most, 1 << (size - 1).bit_length() if size > 0 else 1))
