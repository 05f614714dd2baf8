"""All reasons not to fuse two groups, as one table.

    b3, b7: vertical: too-many-buffers: 140 > 128 buffers (slow to compile, short of registers)

Each row measures a cost of a pair of groups, and stops the fusion where it is beyond a limit. A row without a unit has
no numbers: without it the result would be wrong, or the two have nothing to share. `PAIR_VETOES` stop all rules, and
are asked before a common space is sought, which may split axes; `VETOES` look at the space that a rule has found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import final

from kiln.loops.fusion.align import is_local
from kiln.loops.fusion.costs import LAUNCH_BYTES, NEAR, Pair
from kiln.loops.fusion.group import Group
from kiln.loops.fusion.layout import LONG_ROW, best_vector, row_length, vector_votes
from kiln.loops.fusion.parallel import leaves_idle, pieces, pieces_of
from kiln.loops.fusion.rules import FUSION_RULES
from kiln.loops.fusion.split import SERIAL_POINTS
from kiln.loops.kernel.occupancy import wanted_pieces
from kiln.loops.program import column_layout
from kiln.loops.program.nodes import Reduction, Scan
from kiln.support.records import dataclass
from kiln.symbolic import Symbol, is_static, product
from kiln.tensor.size_hint import large_size_hint

MOST_LOOPS = 48
"""Beyond this a kernel is slow to compile and short of registers."""
MOST_OPS, MOST_BUFFERS = 640, 128
"""The same: 300 additions of 300 tensors took Triton 9 s, 600 of 600 took 75."""
MOST_COLUMNS = 1 << 14
"""Running sums that the registers of a GPU program have room for."""
WORTH = 8
"""A worse loop moves at most so many times the bytes that are saved."""

Excess = tuple[int, int]
"""A cost and the limit that it is beyond."""
CONFLICT: Excess = 1, 0


@final
@dataclass(frozen=True, slots=True)
class Veto:
    """`measure` gives what speaks against a pair; `rules`: those that it may stop, all if empty; `gpu`: there only."""

    measure: Callable[[Pair], Excess | None]
    unit: str
    reason: str
    rules: tuple[str, ...] = ()
    gpu: bool = False

    @property
    def name(self) -> str:
        return self.measure.__name__.replace("_", "-")


# Order in the program.


def memory_order(pair: Pair) -> Excess | None:
    return CONFLICT if pair.first in pair.context.order.barriers(pair.second) else None


def too_many_between(pair: Pair) -> Excess | None:
    """Keeps the time of fusion linear in the size of the program; calls are not moved far."""
    far = pair.distance > NEAR and any(group.step is not None for group in pair.needed)
    return (pair.distance, NEAR) if far else _beyond(len(pair.needed), NEAR)


def dependency_between(pair: Pair) -> Excess | None:
    return CONFLICT if pair.first in pair.needed else None


def held_for_long(pair: Pair) -> Excess | None:
    """The second would run much earlier: its results would take up memory that those of the first took up before."""
    if pair.distance <= NEAR:
        return None
    freed = sum(
        pair.context.bytes(name) for name in {link.access.buffer for link in pair.links} if pair.is_private(name)
    )
    return _beyond(pair.held_bytes, freed + LAUNCH_BYTES)


def other_device(pair: Pair) -> Excess | None:
    return CONFLICT if pair.first.device != pair.second.device else None


# Size of a kernel. What lowering puts into one loop is never too much, nor are two loops.


def too_many_loops(pair: Pair) -> Excess | None:
    count = len(pair.first.members) + len(pair.second.members)
    return (count, MOST_LOOPS) if count > MOST_LOOPS else None


def too_many_ops(pair: Pair) -> Excess | None:
    members = pair.members
    count = sum(len(member.node.body.ops) for member in members)
    return (count, MOST_OPS) if len(members) > 2 and count > MOST_OPS else None


def too_many_buffers(pair: Pair) -> Excess | None:
    count = len({access.buffer for member in pair.members for access in member.accesses()})
    return (count, MOST_BUFFERS) if count > MOST_BUFFERS else None


# Where elements are computed and read.


def not_affine(pair: Pair) -> Excess | None:
    for link in pair.links:
        if link.access.form is None or link.access.conditional or link.writer.write.form is None:
            return CONFLICT
    return None


def not_local(pair: Pair) -> Excess | None:
    return None if all(is_local(link, pair.first, pair.space) for link in pair.links) else CONFLICT


def loses_units(pair: Pair) -> Excess | None:
    left, fewer = len(pair.space.units), min(len(pair.first.units), len(pair.second.units))
    return CONFLICT if left < fewer else None


def loses_vector(pair: Pair) -> Excess | None:
    for group, names in pair.sides():
        if len(pair.space.units) < len(group.units):
            vector = best_vector(group, group.members)
            if vector is None or names.get(vector, vector) in pair.space.units:
                return CONFLICT
    return None


def unmatched_loops(pair: Pair) -> Excess | None:
    second = pair.second
    matched = all(symbol in pair.space.names for symbol in second.sizes if symbol not in second.units)
    return None if matched else CONFLICT


# Sums that are split over units.


def loses_rows(pair: Pair) -> Excess | None:
    return CONFLICT if len(pair.space.units) != len(pair.first.units) else None


def sums_no_unit(pair: Pair) -> Excess | None:
    return CONFLICT if _summed(pair).isdisjoint(pair.space.units) else None


def other_split(pair: Pair) -> Excess | None:
    return None if pair.first.part_symbols() <= _summed(pair) else CONFLICT


def too_many_columns(pair: Pair) -> Excess | None:
    reduced, sizes = pair.second.members[0].reduced(), pair.second.sizes
    columns = product(size for symbol, size in sizes.items() if symbol not in reduced)
    fits = is_static(columns) and columns <= MOST_COLUMNS
    return None if fits else (large_size_hint(columns), MOST_COLUMNS)


def two_blockings(pair: Pair) -> Excess | None:
    return CONFLICT if len({*pair.first.blocked.items(), *_renamed_blocks(pair).items()}) > 1 else None


def parts_lose_units(pair: Pair) -> Excess | None:
    names = pair.space.names
    dims = {*pair.first.part_symbols(), *(names.get(symbol, symbol) for symbol in pair.second.part_symbols())}
    return None if dims <= pair.space.units.keys() else CONFLICT


def sum_across_blocks(pair: Pair) -> Excess | None:
    """A sum that will be split must reduce the units that come in blocks: its parts are numbered by them."""
    blocked = {*pair.first.blocked, *_renamed_blocks(pair)}
    for group, names in pair.sides() if blocked else ():
        for member in group.members:
            if member.partial is None and isinstance(member.node, Reduction):
                outer = _renamed(member.reduced(), names) & pair.space.units.keys()
                if outer and not blocked <= outer:
                    return CONFLICT
    return None


def _summed(pair: Pair) -> set[Symbol]:
    """What the only loop of the second group reduces, in the common space."""
    names = pair.space.names
    return {names[symbol] for symbol in pair.second.members[0].reduced() if symbol in names}


def _renamed_blocks(pair: Pair) -> dict[Symbol, int]:
    """Those of the second group, and their sizes, in the common space."""
    return {pair.space.names.get(symbol, symbol): size for symbol, size in pair.second.blocked.items()}


def _renamed(symbols: Iterable[Symbol], names: Mapping[Symbol, Symbol]) -> set[Symbol]:
    return {names.get(symbol, symbol) for symbol in symbols}


# Speed.


def too_few_pieces(pair: Pair) -> Excess | None:
    """Only where one of the two had more pieces of work, and a loop that takes long."""
    target = pair.context.target
    blocks = pair.first.blocked | _renamed_blocks(pair)
    left = pieces_of(pair.first, pair.space.units, target, _joint_votes(pair), blocks)
    wanted = wanted_pieces(target)
    if left >= wanted:
        return None
    for group in (pair.first, pair.second):
        if left >= pieces(group, group.units, target):
            continue
        for member in group.members:
            if target.is_gpu:
                slow = leaves_idle(group, member, left, target)
            else:
                slow = large_size_hint(group.points(member.symbols())) > SERIAL_POINTS
            if slow:
                return wanted, left
    return None


def _joint_votes(pair: Pair) -> dict[Symbol, float]:
    """How many elements both groups access with neighbours in memory along each symbol of the common space."""
    votes: dict[Symbol, float] = {}
    for group, names in pair.sides():
        for symbol, count in vector_votes(group, group.members).items():
            found = names.get(symbol, symbol)
            votes[found] = votes.get(found, 0) + count
    return votes


def rows_of_results(pair: Pair) -> Excess | None:
    """A GPU program has registers for one row, not for all rows of an image. Parts of sums are there to be kept."""
    units = pair.space.units
    for group, names in pair.sides():
        for member in group.members:
            if member.partial is None and isinstance(member.node, Reduction | Scan):
                reduced = _renamed(member.reduced(), names)
                kept = _renamed(member.symbols(), names) - reduced
                if reduced.isdisjoint(units) and not kept <= units.keys():
                    return CONFLICT
    return None


def other_columns(pair: Pair) -> Excess | None:
    """A block of columns lies along one further dimension; with two, most of its threads do the same work."""
    vector = best_vector(pair.second, pair.second.members)
    columns = vector is not None and pair.space.names.get(vector, vector) in pair.space.units
    theirs = {*pair.space.names.values(), *pair.space.units}
    both = unmatched_loops(pair) is not None and not pair.first.sizes.keys() <= theirs
    return _beyond(pair.context.traffic(pair.second), column_layout.LAUNCH_BYTES) if columns and both else None


def serial_rows(pair: Pair) -> Excess | None:
    """A sum over units makes whole rows of the other group follow one another. Rows in blocks do already."""
    context = pair.context
    for (group, names), other in zip(pair.sides(), (pair.second, pair.first), strict=True):
        reduced = {symbol for member in group.members if member.partial is None for symbol in member.reduced()}
        has_rows = not other.blocked and any(other.inner(member) for member in other.members)
        if has_rows and not _renamed(reduced, names).isdisjoint(pair.space.units):
            return _beyond(context.traffic(other), WORTH * min(pair.saved_bytes, context.traffic(group)))
    return None


def units_become_rows(pair: Pair) -> Excess | None:
    """A pointwise group loses units: its loop becomes rows."""
    for group in (pair.first, pair.second):
        if len(pair.space.units) < len(group.units) and not group.has_reductions():
            excess = _beyond(pair.context.traffic(group), WORTH * pair.saved_bytes)
            if excess is not None:
                return excess
    return None


def narrow_rows(pair: Pair) -> Excess | None:
    """Units that are long rows in memory would become short ones, inside of the units that are left."""
    if pair.context.target.is_gpu:
        return None  # whose lanes are not the neighbours of one row
    for group, names in pair.sides():
        inside = [symbol for symbol in group.sizes if names.get(symbol, symbol) not in pair.space.units]
        left = max(row_length(group, inside), row_length(group, group.units.keys() - inside))
        if left < LONG_ROW <= row_length(group, group.units) and _takes_long(group):
            return _beyond(pair.context.traffic(group), WORTH * pair.saved_bytes)
    return None


def _takes_long(group: Group) -> bool:
    return any(large_size_hint(group.points(member.symbols())) > SERIAL_POINTS for member in group.members)


def little_shared(pair: Pair) -> Excess | None:
    return _beyond(pair.context.traffic(pair.second), WORTH * pair.saved_bytes)


def extra_launch(pair: Pair) -> Excess | None:
    """The sum of the parts may be a kernel of its own."""
    return (LAUNCH_BYTES, pair.saved_bytes) if pair.saved_bytes <= LAUNCH_BYTES else None


def _beyond(cost: int, limit: int) -> Excess | None:
    return (cost, limit) if cost > limit else None


# fmt: off
ROWS, MIXED, SIBLINGS = ("vertical", "siblings"), ("mixed-order",), ("siblings",)
CONSUMERS, SMALL = ("consumers-after-reduction",), ("small-sums",)
PAIR_VETOES = (
    #    measure              unit        reason
    Veto(memory_order,        "",         "one overwrites memory that the other uses"),
    Veto(too_many_between,    "kernels",  "the second needs them, and they are not moved"),
    Veto(dependency_between,  "",         "the second needs a kernel between them that needs the first"),
    Veto(held_for_long,       "bytes",    "they would wait for readers that are far behind"),
    Veto(other_device,        "",         "they run on different devices"),
    Veto(too_many_loops,      "loops",    "slow to compile, short of registers"),
    Veto(too_many_ops,        "ops",      "slow to compile, short of registers"),
    Veto(too_many_buffers,    "buffers",  "slow to compile, short of registers"),
    Veto(not_affine,          "",         "elements are picked by data or under a mask"),
)
VETOES = (
    #    measure              unit        reason                                          rules
    Veto(not_local,           "",         "a unit would read what another one writes"),
    Veto(loses_units,         "",         "neither keeps all of its units",                ROWS),
    Veto(loses_vector,        "",         "its rows would not lie in memory",             ROWS),
    Veto(unmatched_loops,     "",         "their loops differ",                            SMALL),
    Veto(loses_rows,          "",         "rows would no longer be units",                 MIXED),
    Veto(too_many_columns,    "columns",  "a program has no registers for them",           MIXED, gpu=True),
    Veto(sums_no_unit,        "",         "the sum is not over the rows",                  MIXED),
    Veto(other_split,         "",         "other sums are split over other units",         MIXED),
    Veto(two_blockings,       "",         "units come in blocks along one symbol only"),
    Veto(parts_lose_units,    "",         "units that number parts of sums would be lost"),
    Veto(sum_across_blocks,   "",         "a sum would cross the blocks of units"),
    Veto(too_few_pieces,      "pieces",   "more are wanted than are left: cores idle"),
    Veto(rows_of_results,     "",         "a unit would hold several reductions' results", gpu=True),
    Veto(other_columns,       "bytes",    "columns of another length are other blocks",    CONSUMERS, gpu=True),
    Veto(serial_rows,         "bytes",    "rows would follow one another to save little",  gpu=True),
    Veto(units_become_rows,   "bytes",    "a parallel loop would run in rows to save little"),
    Veto(narrow_rows,         "bytes",    "its rows would not fill vectors"),
    Veto(little_shared,       "bytes",    "most of what the second reads is not shared",   SIBLINGS),
    Veto(extra_launch,        "bytes",    "a launch costs more than is saved",             MIXED),
)
# fmt: on

VETOES_BY_RULE = {
    (rule.name, gpu): tuple(
        veto for veto in VETOES if (gpu or not veto.gpu) and (not veto.rules or rule.name in veto.rules)
    )
    for rule in FUSION_RULES
    for gpu in (False, True)
}
