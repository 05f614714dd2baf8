"""The rules of fusion: which two groups may become one kernel, and what that saves.

A rule says how two groups meet (`applies`), which units are left (an `CommonSpace`), and with that the same score
decides for all: bytes that need not go through memory, and a launch, against parallelism that is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from kiln.loops.fusion.align import CommonSpace, align, dependencies, pair_by_size
from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.group import Group, GroupSymbols, Member
from kiln.loops.fusion.layout import best_vector
from kiln.loops.fusion.parallel import pieces, starves
from kiln.loops.fusion.split import SERIAL_POINTS, is_splittable
from kiln.loops.kernel.occupancy import wanted_pieces
from kiln.loops.program.nodes import Buffer, Reduction, Scan
from kiln.support.target import Target
from kiln.symbolic import Symbol, is_static, product
from kiln.tensor.size_hint import large_size_hint, size_hint

LAUNCH_BYTES = 1 << 14
"""What a launch costs, in bytes that could be moved in its time."""
GOOD_PART = 8
"""What is saved is worth a worse loop if it is one part in so many of what the loop moves."""
SMALL_SUM = 1 << 18
"""Points that a GPU sums in less than the time of a launch."""
MOST_COLUMNS = 1 << 14
"""Running sums that the registers of a program of a GPU have room for."""
MOST_MEMBERS = 48
"""KernelLoops in a kernel; beyond this it is slow to compile and short of registers."""
MOST_OPS, MOST_BUFFERS = 640, 128
"""The same for its operations, and for what it reads and writes: 300 additions of 300 tensors took Triton 9 s, 600 of
600 took 75."""


@final
@dataclass(frozen=True, slots=True)
class FusionContext:
    """What rules look at beside the two groups."""

    buffers: Mapping[str, Buffer]
    graph: Dependencies
    symbols: GroupSymbols
    target: Target

    def bytes(self, name: str) -> int:
        spec = self.buffers[name].spec
        return size_hint(spec.numel()) * spec.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class FusionRule:
    """`propose(first, second, context)`: the common space, or None where the rule does not apply.

    `launches`: how many it saves. `shares`: what is saved has to be a good part of the second group's traffic.
    """

    name: str
    propose: Callable[[Group, Group, FusionContext], CommonSpace | None]
    launches: int = 1
    shares: bool = False


@final
@dataclass(frozen=True, slots=True)
class Proposal:
    rule: str
    alignment: CommonSpace


def vertical(first: Group, second: Group, context: FusionContext) -> CommonSpace | None:
    """A pointwise consumer joins its pointwise producers: the value stays in a register.

    y = exp(x); z = y + 1        one loop, y is stored only if something else reads it
    """
    if first.has_reductions() or second.has_reductions() or not _depends(first, second):
        return None
    return _in_rows(first, second, align(first, second, context.symbols))


def producers_into_reduction(first: Group, second: Group, context: FusionContext) -> CommonSpace | None:
    """Pointwise producers join the reduction that reads them: the reduction's kept axes are the units.

    y = gelu(x); s = sum of y over i1        y[i0, ...] is made and summed by unit i0
    """
    if first.has_reductions() or not second.has_reductions() or not _depends(first, second):
        return None
    return align(first, second, context.symbols)


def consumers_after_reduction(first: Group, second: Group, context: FusionContext) -> CommonSpace | None:
    """Consumers of a reduction, pointwise or reductions again, join it: later phases of the same unit.

    s = sum of x over i1; y = x / s        softmax, layer norm, cross-entropy become one kernel
    """
    if not first.has_reductions() or not _depends(first, second):
        return None
    return align(first, second, context.symbols)


def siblings(first: Group, second: Group, context: FusionContext) -> CommonSpace | None:
    """Two loops that read the same data and do not depend on each other share the pass over it.

    a = sum of x over i1; b = amax of x over i1
    """
    if _depends(first, second) or not _shared(first, second):
        return None
    return _in_rows(first, second, align(first, second, context.symbols))


def small_sums(first: Group, second: Group, context: FusionContext) -> CommonSpace | None:
    """Two short reductions of equal shape share a launch, on a GPU, though they read nothing in common.

    loss = sum of loss_terms over i0; count = sum of mask over i0
    """
    if not is_small_sum(first, context.target) or not is_small_sum(second, context.target) or _depends(first, second):
        return None
    ours, theirs = ([group.sizes[one] for one in group.units] for group in (first, second))
    if ours != theirs:
        return None
    names = dict(zip(second.units, first.units, strict=True))
    pair_by_size(first, second, names)
    inner = [one for one in second.sizes if one not in second.units]
    return CommonSpace(names, dict(first.units)) if all(one in names for one in inner) else None


def is_small_sum(group: Group, target: Target) -> bool:
    """Does its launch take longer than its work?"""
    return (
        target.is_gpu
        and group.parts is None
        and bool(group.members)
        and all(isinstance(one.node, Reduction) for one in group.members)
        and size_hint(product(group.sizes.values())) <= SMALL_SUM
    )


def mixed_order(first: Group, second: Group, context: FusionContext) -> CommonSpace | None:
    """A column reduction joins a kernel over rows: each block of rows gives its part of the sums.

    dx[i0, i1] = f(row i0 of g); db[i1] = sum of g over i0        the backward of layer norm
    """
    if len(second.members) != 1 or not is_splittable(second.members[0]) or second.members[0].partial:
        return None
    if first.members[-1].number > second.members[0].number:
        return None  # its sum may have readers already, which a split would leave behind
    found = align(first, second, context.symbols, opened=True)
    if found is None or len(found.units) != len(first.units):
        return None
    if context.target.is_gpu and not _fits_registers(second):
        return None
    outer = [found.names.get(one) for one in second.members[0].reduced()]
    split = any(one in found.units for one in outer)
    return found if split and all(one in outer for one in first.part_symbols()) else None


def _fits_registers(group: Group) -> bool:
    """Can a program of a GPU hold the parts of the sums of `group`, one for each column?"""
    columns = product(size for one, size in group.sizes.items() if one not in group.members[0].reduced())
    return is_static(columns) and columns <= MOST_COLUMNS


def combined_parts(first: Group, second: Group, context: FusionContext) -> CommonSpace | None:
    """Sums of parts that one kernel made are finished by one kernel.

    dw = sum of dw_part over blocks; db = sum of db_part over blocks
    """
    if not (_combines_parts(first) and _combines_parts(second)) or _depends(first, second):
        return None
    ours, theirs = ([group.sizes[one] for one in group.units] for group in (first, second))
    names = dict(zip(second.units, first.units, strict=False))
    pair_by_size(first, second, names)
    return CommonSpace(names, dict(first.units)) if ours == theirs else None


def _combines_parts(group: Group) -> bool:
    return group.parts is not None


def _in_rows(first: Group, second: Group, found: CommonSpace | None) -> CommonSpace | None:
    """All units of one of the two are left; where the other loses some, its units become rows."""
    if found is None or len(found.units) < min(len(first.units), len(second.units)):
        return None
    names: Mapping[Symbol, Symbol]
    for group, names in ((first, {}), (second, found.names)):
        if len(found.units) < len(group.units):
            vector = best_vector(group, group.members)
            if vector is None or names.get(vector, vector) in found.units:
                return None
    return found


FUSION_RULES = (
    FusionRule("vertical", vertical),
    FusionRule("producers-into-reduction", producers_into_reduction),
    FusionRule("consumers-after-reduction", consumers_after_reduction),
    FusionRule("siblings", siblings, shares=True),
    FusionRule("small-sums", small_sums),
    FusionRule("mixed-order", mixed_order, launches=-1),  # the sum of the parts may be a kernel of its own
    FusionRule("combined-parts", combined_parts),
)


def _depends(first: Group, second: Group) -> bool:
    return next(dependencies(first, second), None) is not None


def _shared(first: Group, second: Group) -> set[str]:
    """Buffers that both read and neither writes."""
    made = first.writers().keys() | second.writers().keys()
    mine, theirs = ({access.buffer for one in group.members for access in one.reads} for group in (first, second))
    return (mine & theirs) - made


def propose(first: Group, second: Group, context: FusionContext) -> Proposal | None:
    """What the first rule that applies makes of the two, if it is worth it."""
    if first.device != second.device or _are_many([*first.members, *second.members]):
        return None
    saved = _saved_bytes(first, second, context)
    for rule in FUSION_RULES:
        found = rule.propose(first, second, context)
        if found is None or not _parts_stay(first, second, found) or _starves(first, second, found, context):
            continue
        if context.target.is_gpu and (
            _keeps_inside(first, second, found) or _waits(first, second, found, saved, context)
        ):
            continue
        losers = [*_demoted(first, second, found), *([second] if rule.shares else [])]
        if any(GOOD_PART * saved < _traffic(group, context) for group in losers):
            continue
        if saved + rule.launches * LAUNCH_BYTES > 0:
            return Proposal(rule.name, found)
    return None


def _are_many(members: Sequence[Member]) -> bool:
    """Too many for one kernel; what lowering puts into one loop never is."""
    if len(members) <= 2:
        return False
    if len(members) > MOST_MEMBERS or sum(len(one.node.body.ops) for one in members) > MOST_OPS:
        return True
    return len({access.buffer for one in members for access in one.accesses()}) > MOST_BUFFERS


def _saved_bytes(first: Group, second: Group, context: FusionContext) -> int:
    total = sum(context.bytes(name) for name in _shared(first, second))
    inside = {member.number for group in (first, second) for member in group.members}
    for name in {access.buffer for _, _, _, access in dependencies(first, second)}:
        uses = context.graph.uses[name]
        stays = not uses.kept and all(number in inside for number in uses.readers)
        total += context.bytes(name) * (2 if stays else 1)
    return total


def _demoted(first: Group, second: Group, found: CommonSpace) -> list[Group]:
    """Pointwise groups that lose units: their loops become rows, which has to be worth it."""
    return [one for one in (first, second) if len(found.units) < len(one.units) and not one.has_reductions()]


def _traffic(group: Group, context: FusionContext) -> int:
    """Bytes that the group moves; of a table that is looked up only what is picked."""
    moved: dict[str, int] = {}
    for member in group.members:
        points = group.points_hint(member.symbols()) * member.node.out.spec.dtype.itemsize
        for access in member.accesses():
            moved[access.buffer] = min(context.bytes(access.buffer), points)
    return sum(moved.values())


def _parts_stay(first: Group, second: Group, found: CommonSpace) -> bool:
    """Reductions that are split over units must keep these units, in blocks along one of them."""
    blocked = {*first.blocked, *(found.names.get(one, one) for one in second.blocked)}
    dims = {*first.part_symbols(), *(found.names.get(one, one) for one in second.part_symbols())}
    if len(blocked) > 1 or not dims <= found.units.keys():
        return False
    return not blocked or all(
        _splits_along(member, blocked, found) for one in (first, second) for member in one.members
    )


def _splits_along(member: Member, blocked: set[Symbol], found: CommonSpace) -> bool:
    """A reduction that will be split must reduce the units that come in blocks: its parts are counted by them."""
    if member.partial is not None or not isinstance(member.node, Reduction):
        return True
    outer = {found.names.get(one, one) for one in member.reduced()} & found.units.keys()
    return not outer or blocked <= outer


def _starves(first: Group, second: Group, found: CommonSpace, context: FusionContext) -> bool:
    """Does the fused loop leave parts of the machine without work that one of the two had?"""
    target = context.target
    blocks = first.blocked | {found.names.get(one, one): size for one, size in second.blocked.items()}
    left = pieces(first, found.units, target, blocks)
    if left >= wanted_pieces(target):
        return False
    for group in (first, second):
        if left >= pieces(group, group.units, target):
            continue
        for member in group.members:
            points = group.points(member.symbols())
            if starves(size_hint(points), left, target) if target.is_gpu else large_size_hint(points) > SERIAL_POINTS:
                return True
    return False


def _waits(first: Group, second: Group, found: CommonSpace, saved: int, context: FusionContext) -> bool:
    """Would whole rows be gone through one after the other, for a sum over units that reads little of them?

    Where rows come in blocks already, they are.
    """
    names: Mapping[Symbol, Symbol]
    for group, other, names in ((first, second, {}), (second, first, found.names)):
        reduced = {names.get(one, one) for member in group.members if member.partial is None
                   for one in member.reduced()}  # fmt: skip
        rows = not other.blocked and any(other.inner(member) for member in other.members)
        if rows and not reduced.isdisjoint(found.units):
            return GOOD_PART * min(saved, _traffic(group, context)) < _traffic(other, context)
    return False


def _keeps_inside(first: Group, second: Group, found: CommonSpace) -> bool:
    """Would a unit keep several results of a reduction or of a scan that were units before?

    A program of a GPU has registers for one row, not for all rows of an image. Parts of sums are made to be kept.
    """
    names: Mapping[Symbol, Symbol]
    for group, names in ((first, {}), (second, found.names)):
        for member in group.members:
            if member.partial is not None or not isinstance(member.node, Reduction | Scan):
                continue
            reduced = {names.get(one, one) for one in member.reduced()}
            kept = {names.get(one, one) for one in member.symbols()} - reduced
            if reduced.isdisjoint(found.units) and not kept <= found.units.keys():
                return True
    return False
