"""Loop order, vector axis, strips and grain of a group: how its loops lie on memory and threads.

    units {g0: rows}, inner {g1: columns, stride 1}     rows one by one, phases vectorised along g1
    units {g1: columns, stride 1}, inner {g0: rows}     strips of columns, each going down the rows

Symbols are ordered by their strides, largest outermost; the one with neighbours in memory in most accesses is
vectorised. If it is a unit, units go through the phases in strips.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import log2
from typing import final

from kiln.loops.body.affine import Affine, divides
from kiln.loops.body.analyses import bound_symbols, flops, free_symbols, without_dead
from kiln.loops.body.body import Indirect, Load, LoopBody
from kiln.loops.body.indexing import symbols_of
from kiln.loops.fusion.group import FusableNode, Group, GroupSymbols, Member
from kiln.loops.kernel.occupancy import floor_power, wanted_pieces
from kiln.loops.program.analyses import node_axes
from kiln.loops.program.nodes import Buffer
from kiln.support.errors import require
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Symbol, is_static, sym_min
from kiln.tensor.size_hint import size_hint

GRAIN_NANOSECONDS = 20_000
"""Work that is worth a thread."""
NANOSECONDS_PER_BYTE, NANOSECONDS_PER_FLOP = 0.05, 0.05  # of one core: 20 GB/s, 20 Gflop/s
NANOSECONDS_PER_MISS, FAR_BYTES = 5, 1 << 20
"""What a look-up in a tensor of so many bytes costs."""
LONGEST_STRIP, SHORTEST_STRIP_BYTES = 256, 128
"""Units that go through a phase together: enough for long vector loops, few enough for locals to stay in the cache."""
SHORT_ROW = 12
"""Rows that do not fill a vector."""
FEW = 7
"""Points of an axis that are taken one by one, for vectors along another one."""
LONG_ROW = 32
"""Rows that fill several."""


@final
@dataclass(frozen=True, slots=True)
class LoopLayout:
    """`order`: all symbols, outermost first. `vector`: the one that is vectorised where a phase has it."""

    order: list[Symbol]
    vector: Symbol | None
    strip: int
    grain: int


def block_units(group: Group, symbols: GroupSymbols) -> None:
    """Blocked units become units of blocks, with the units of a block inside."""
    for old, size in list(group.blocked.items()):
        block, within = symbols.fresh(), symbols.fresh()
        count = group.sizes[old]
        group.split(old, within, size, block, (count + size - 1) // size)
        if not divides(size, count):
            group.sizes[within] = sym_min(size, count - block * size)
            group.ragged[within] = size
        del group.units[within]
        del group.blocked[old]
        for member in group.members:
            if member.partial is not None:
                require(member.partial.blocked is not old or member.partial.size == size, "parts have other blocks")
                member.partial.dims = tuple(block if symbol is old else symbol for symbol in member.partial.dims)


def layout(group: Group, stored: frozenset[str], buffers: Mapping[str, Buffer], target: Target) -> LoopLayout:
    """How the loops of `group` are run on `target`; `stored`: results that reach memory."""
    strides = _strides(group)
    full_row = 1 if target.is_gpu else SHORT_ROW
    vector = best_vector(group, group.members, stored, full_row)
    if vector is None:
        vector = best_vector(group, group.members, None, full_row)
    in_strips = vector is None or vector in group.units or _has_short_rows(group)
    short = vector
    if vector is not None and not target.is_gpu and not any(group.inner(member) for member in group.members):
        vector = lengthwise(group, group.members, vector, group.units)
    if in_strips and vector not in group.units:
        vector = min(group.units, key=lambda unit: strides.get(unit, 0.0), default=None)
    if in_strips and vector in symbols_of(*group.sizes.values()):
        # The units of a strip go through a phase together: its sizes must not differ between them.
        in_strips, vector = False, None
    # A short axis beside the vector's is the outermost, for the others may be one.
    order = sorted(group.sizes, key=lambda symbol: (symbol is vector, symbol is not short, -strides.get(symbol, 0.0)))
    if target.is_gpu:  # its passes choose blocks, strips and vectors
        on_host = group.members[0].node.out.spec.device.type == "cpu"
        return LoopLayout(order, None, 0, _grain(group, buffers) if on_host else 1)
    strip = _strip(group, target) if in_strips and group.units else 0
    return LoopLayout(order, vector if not in_strips else None, strip, _grain(group, buffers))


def _has_short_rows(group: Group) -> bool:
    """Would rows leave vectors empty, where there are many of them?"""
    longest = max(group.points_hint(group.inner(member)) for member in group.members)
    return longest < SHORT_ROW and group.points_hint(group.units) >= 8 * SHORT_ROW


def best_vector(
    group: Group, members: Iterable[Member], stored: frozenset[str] | None = None, full_row: int = 1
) -> Symbol | None:
    """The symbol with neighbours in memory in most accesses, weighed by elements; None where there is none.

    `stored`: which results of members reach memory; None: all. Rows shorter than `full_row` count in part.
    """
    votes = vector_votes(group, members, stored, full_row)
    return max(votes, key=lambda symbol: votes[symbol], default=None)


def vector_votes(
    group: Group, members: Iterable[Member], stored: frozenset[str] | None = None, full_row: int = 1
) -> dict[Symbol, float]:
    """How many elements are accessed with neighbours in memory along each symbol."""
    private = group.writers().keys() - stored if stored is not None else frozenset()
    votes: dict[Symbol, float] = {}
    for member in members:
        for access in member.accesses():
            if access.buffer in private:
                continue
            moving = member.symbols() if access.form is None else access.form.strides
            for symbol in access.neighbours or _in_order(access.form):
                filled = min(group.points_hint((symbol,)) / full_row, 1.0)
                votes[symbol] = votes.get(symbol, 0) + group.points_hint(moving) * filled
    return votes


def lengthwise(group: Group, members: Iterable[Member], vector: Symbol, among: Collection[Symbol]) -> Symbol:
    """`vector`, or where it has a few points only, the symbol of `among` (with it) that comes next in memory in most
    accesses: tiles of both are transposed. Not where they are one axis in all accesses: they will be merged."""
    votes: dict[Symbol, int] = {}
    count = 0
    forms = [access.form for member in members for access in member.accesses() if access.form is not None]
    for form in forms:
        if vector not in _in_order(form):
            continue
        apart = {symbol: size_hint(form.strides[symbol]) for symbol in among if symbol in form.strides}
        points = group.points_hint(apart)
        del apart[vector]
        if apart:
            following = min(apart, key=lambda symbol: apart[symbol])
            votes[following] = votes.get(following, 0) + points
            count += points
    best = max(votes, key=lambda symbol: votes[symbol], default=vector)
    few = 1 < group.points_hint((vector,)) <= FEW <= group.points_hint((best,))
    step = group.sizes[vector]
    merged = all(form.strides.get(best, 0) == step * form.strides.get(vector, 0) for form in forms)
    return best if few and not merged and 2 * votes.get(best, 0) >= count else vector


def _in_order(form: Affine | None) -> list[Symbol]:
    """The symbols along which neighbours are neighbours in memory."""
    return [symbol for symbol, step in form.strides.items() if is_static(step) and step == 1] if form else []


def row_length(group: Group, symbols: Collection[Symbol]) -> int:
    """How many neighbours in memory the largest access has along `symbols`."""
    # Most accesses run over the same symbols: the first over each tuple of them is asked for its points.
    forms: dict[tuple[Symbol, ...], Affine] = {}
    for member in group.members:
        for access in member.accesses():
            if access.form is not None:
                forms.setdefault(tuple(access.form.strides), access.form)
    if not forms:
        return 1
    largest = max(forms.values(), key=lambda form: group.points_hint(form.strides))
    steps = {size_hint(stride): symbol for symbol, stride in largest.strides.items() if symbol in symbols}
    length = 1
    while length in steps:
        length *= group.points_hint((steps.pop(length),))
    return length


def _strides(group: Group) -> dict[Symbol, float]:
    """The mean logarithm of the strides of each symbol, weighed by the elements of an access."""
    total: dict[Symbol, float] = {}
    count: dict[Symbol, int] = {}
    for member in group.members:
        for access in member.accesses():
            if access.form is None:
                continue
            points = group.points_hint(access.form.strides)
            for symbol, stride in access.form.strides.items():
                total[symbol] = total.get(symbol, 0.0) + points * log2(max(abs(size_hint(stride)), 1))
                count[symbol] = count.get(symbol, 0) + points
    return {symbol: total[symbol] / max(count[symbol], 1) for symbol in total}


def _strip(group: Group, target: Target) -> int:
    """Long strips for pointwise loops; short ones where a strip is most of the work, so that all threads have some."""
    if not any(group.inner(member) for member in group.members):
        return LONGEST_STRIP
    wanted = floor_power(group.points_hint(group.units) // wanted_pieces(target))
    return max(SHORTEST_STRIP_BYTES // 4, min(LONGEST_STRIP, wanted))


def _misses(node: FusableNode, buffers: Mapping[str, Buffer]) -> int:
    """Look-ups of neighbouring points that lie apart in a tensor beyond the cache."""
    picked = tuple([op.operand for op in node.body.ops if isinstance(op, Indirect)])
    longer = [axis.symbol for axis in node_axes(node) if size_hint(axis.size) > 1]
    if not picked or not longer or longer[-1] not in free_symbols(without_dead(LoopBody(node.body.ops, picked))):
        return 0
    bound = bound_symbols(node.body)
    loads = [op for op in node.body.ops if isinstance(op, Load) and not bound.isdisjoint(symbols_of(*op.index))]
    specs = [buffers[load.buffer].spec for load in loads]
    return sum(size_hint(spec.numel()) * spec.dtype.itemsize >= FAR_BYTES for spec in specs)


def _grain(group: Group, buffers: Mapping[str, Buffer]) -> int:
    """Units that take about `GRAIN_NANOSECONDS`."""
    cost = 0.0
    for member in group.members:
        points = group.points_hint(group.inner(member))
        size = sum(1 for _ in member.accesses()) * member.node.out.spec.dtype.itemsize
        cost += points * (size * NANOSECONDS_PER_BYTE + flops(member.node.body) * NANOSECONDS_PER_FLOP)
        cost += points * _misses(member.node, buffers) * NANOSECONDS_PER_MISS
    return floor_power(int(GRAIN_NANOSECONDS / max(cost, 0.01)))
