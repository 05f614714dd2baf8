"""Reductions that are split over units: each block of units gives a part, a second reduction combines the parts.

    total = sum over (i0: 1000000) of x[i0]

    part[b] = sum over (v: 8192) of x[8192*b + v]       units (b: 123)
    total   = sum over (b: 123) of part[b]

A reduction is split when too few units would be left, or when one accumulator would take so many terms that a plain
sum loses accuracy; and to join a group whose units it reduces: layer norm's backward computes the gradient of each row,
and the sums of columns over all rows, in one pass. On a CPU block sizes depend on the shape of the loop, never on the
number of threads: results are the same on every machine. On a GPU they also depend on the number of multiprocessors.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import count

from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import Axis
from kiln.loops.fusion.group import Group, Member, PartialReduction
from kiln.loops.fusion.parallel import leaves_idle, pieces, strip
from kiln.loops.kernel.occupancy import floor_power, wanted_pieces
from kiln.loops.program.nodes import Buffer, Reduction
from kiln.loops.program.reductions import accumulator_dtype
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol, ceil_div, is_static, symbol
from kiln.tensor.size_hint import large_size_hint, size_hint
from kiln.tensor.spec import TensorSpec, contiguous_strides

SERIAL_POINTS = 1 << 15
"""So many points are not worth a second thread."""
BLOCK_POINTS = 1 << 13
"""Points of a block: long enough to hide the second reduction, short enough to stay in the cache."""
COLUMN_TERMS = 512
"""Terms that one accumulator of a column takes before its error shows."""
COLUMN_BLOCK = 128
"""Rows of a block of a column reduction."""
GPU_BLOCK_POINTS, GPU_COLUMN_BLOCK = 1 << 12, 1 << 6
"""The shortest block of a row, and the fewest rows of a block of columns, that are worth a program."""


def is_splittable(member: Member) -> bool:
    return isinstance(member.node, Reduction) and member.node.op.is_splittable


def initial_units(group: Group, member: Member, target: Target) -> dict[Symbol, None]:
    """The units of a node on its own; those of a reduction that is split hold reduced symbols."""
    reduced = member.reduced()
    kept = {symbol: None for symbol in member.symbols() if symbol not in reduced}
    if not is_splittable(member):
        return kept
    block = _gpu_block(group, member, kept, target) if target.is_gpu else _cpu_block(group, member, kept, target)
    if block is None:
        return kept
    outer = _outer_reduced(group, member, block)
    return {symbol: None for symbol in member.symbols() if symbol in kept or symbol in outer}


def _cpu_block(group: Group, member: Member, kept: dict[Symbol, None], target: Target) -> int | None:
    """Points of a block; None where the reduction stays whole."""
    reduced = member.reduced()
    if large_size_hint(group.points(member.symbols())) <= SERIAL_POINTS:
        return None
    if _runs_along(member, reduced):
        return BLOCK_POINTS if size_hint(group.points(kept)) < 4 * target.threads else None
    return COLUMN_BLOCK if large_size_hint(group.points(reduced)) > COLUMN_TERMS else None


def _gpu_block(group: Group, member: Member, kept: dict[Symbol, None], target: Target) -> int | None:
    """Split where the kept axes give too few programs and each would take long."""
    have, reduced = pieces(group, kept, target), member.reduced()
    if not leaves_idle(group, member, have, target):
        return None
    least = GPU_BLOCK_POINTS if _runs_along(member, reduced) else GPU_COLUMN_BLOCK
    points = size_hint(group.points(reduced))
    block = max(points * have // (2 * wanted_pieces(target)), least)
    return block if 2 * block <= points else None


def _runs_along(member: Member, symbols: dict[Symbol, None]) -> bool:
    """Are neighbours in memory neighbours along `symbols`?"""
    for access in member.reads:
        if access.form is not None:
            for symbol, stride in access.form.strides.items():
                if is_static(stride) and stride == 1:
                    return symbol in symbols
    return False


def _strides(member: Member) -> dict[Symbol, int]:
    """The stride of each symbol in the read that has most of them."""
    forms = [access.form.strides for access in member.reads if access.form is not None]
    return {symbol: size_hint(stride) for symbol, stride in max(forms, key=len, default={}).items()}


def _outer_reduced(group: Group, member: Member, block_points: int) -> dict[Symbol, None]:
    """Reduced symbols from the one on at which a block is full; all of them where none is."""
    strides = _strides(member)
    ascending = sorted(member.reduced(), key=lambda symbol: strides.get(symbol, 0))
    points = 1
    for position, reduced in enumerate(ascending):
        points *= max(size_hint(group.sizes[reduced]), 1)
        if points >= block_points or position == len(ascending) - 1:
            return dict.fromkeys(ascending[position:])
    return {}


def make_partial(
    group: Group, member: Member, kept_in_strips: bool, target: Target, names: Container[str] = ()
) -> Reduction:
    """Mark `member`, some of whose reduced symbols are units of `group`, as partial; the reduction of its parts, which
    get none of `names`."""
    node = member.node
    assert isinstance(node, Reduction)
    strides = _strides(member)
    outer = [symbol for symbol in member.reduced() if symbol in group.units]
    outer.sort(key=lambda symbol: -strides.get(symbol, 0))
    blocked = next(iter(group.blocked), outer[-1])
    outer.sort(key=lambda symbol: symbol is blocked)
    if not group.blocked and target.is_gpu:
        group.blocked[blocked] = _gpu_block_size(group, blocked, target)
    elif not group.blocked:
        group.blocked[blocked] = _block_size(group, kept_in_strips)
    size = group.blocked[blocked]
    counts = [*(group.sizes[symbol] for symbol in outer[:-1]), ceil_div(group.sizes[blocked], size)]
    sizes = (*counts, *node.out.spec.sizes)
    dtype = accumulator_dtype(node.op, node.out.spec.dtype)
    spec = TensorSpec(dtype, sizes, contiguous_strides(sizes), 0, node.out.spec.device)
    number = next(number for number in count() if f"{node.out.name}_part{number or ''}" not in names)
    part = Buffer(f"{node.out.name}_part{number or ''}", spec)
    member.partial = PartialReduction(part, tuple(outer), blocked, size)
    return _combine(node, part, counts)


def _inner_points(group: Group) -> int:
    """Points inside a unit."""
    return size_hint(group.points(symbol for symbol in group.sizes if symbol not in group.units))


def _block_size(group: Group, kept_in_strips: bool) -> int:
    """A power of two, so that sizes which are multiples of it leave no rest."""
    inner = max(_inner_points(group), 1)
    if kept_in_strips:
        return max(COLUMN_BLOCK // inner, 1)
    wanted = max(BLOCK_POINTS // inner, 4)
    return 1 << (wanted - 1).bit_length()


def _gpu_block_size(group: Group, blocked: Symbol, target: Target) -> int:
    """Units per block: the most that leave enough programs, but enough work for each.

    Without a rest if a few more or less need none.
    """
    others = [unit for unit in group.units if unit is not blocked]
    blocks = _blocks_for(pieces(group, others, target), target)
    size, inner = size_hint(group.sizes[blocked]), _inner_points(group)
    least = GPU_BLOCK_POINTS // max(inner * strip(group, others), 1)
    most = max(min(max(size // blocks, least), size), 1)
    if is_static(group.sizes[blocked]):
        for exact in range(most + most // 16, most - most // 8, -1):
            if size % exact == 0:
                return exact
        if inner > 1:
            return -(-size // (size // most))
    return floor_power(most)


def _blocks_for(others: int, target: Target) -> int:
    """Blocks that each of `others` pieces is cut into, for about as many programs as are wanted.

    A few more than there is room for wait until the first are done; a few less leave some multiprocessors half idle.
    """
    wanted, machine = wanted_pieces(target), max(target.multiprocessors, 1)
    fewer = max(wanted // max(others, 1), 1)

    def busy(blocks: int) -> float:
        programs = blocks * max(others, 1)
        return programs / (machine * -(-programs // machine))

    return fewer + 1 if fewer * others < wanted and busy(fewer + 1) > busy(fewer) else fewer


def _combine(node: Reduction, part: Buffer, counts: list[Int]) -> Reduction:
    """The reduction of the parts."""
    axes = tuple(Axis(symbol(f"q{dim}"), count) for dim, count in enumerate(counts))
    builder = BodyBuilder()
    index = tuple(axis.symbol for axis in (*axes, *node.kept))
    body = builder.finish(builder.load(part.name, index, part.spec.dtype))
    return Reduction(node.out, node.kept, axes, node.op, body, node.origin)
