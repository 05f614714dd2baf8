"""How many independent pieces of work a kernel has, and how many the machine wants.

    CPU   a piece is a unit; four per thread keep all threads busy to the end
    GPU   a piece is a program: a unit, or a strip of units that are neighbours in memory; two per multiprocessor at
          least, four where a reduction is cut into blocks for them

Numbers depend on the machine and on shapes, never on data or on how many threads happen to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from kiln.loops.body.analyses import flops
from kiln.loops.fusion.group import Group, Member
from kiln.loops.fusion.layout import vector_votes
from kiln.loops.kernel.occupancy import wanted_pieces
from kiln.support.target import Target
from kiln.symbolic import Symbol
from kiln.tensor.size_hint import size_hint

GPU_STRIP = 64
"""Units next to each other in memory that one GPU program takes at least."""
PIECE_POINTS = 1 << 15
"""Points that one GPU program computes in the time of a launch, and the longest row that its registers hold: whole, the
row is there for what is computed from it and its sum."""

ONE_EXPONENTIAL = 13
"""Operations of a point of a softmax; points of more (a sine, `tanh`) take twice the time."""


def pieces(group: Group, units: Iterable[Symbol], target: Target) -> int:
    """About how many pieces of work there are if `units` are the units of `group`."""
    return pieces_of(group, units, target, vector_votes(group, group.members), group.blocked)


def pieces_of(
    group: Group, units: Iterable[Symbol], target: Target, votes: Mapping[Symbol, float], blocks: Mapping[Symbol, int]
) -> int:
    """The same for accesses along symbols as `votes` counts them.

    `blocks`: units that a GPU program takes in blocks, and how many make one.
    """
    units = list(units)
    if not target.is_gpu:
        return size_hint(group.points(units))
    together = {neighbours(votes, units): GPU_STRIP} | dict(blocks)
    return prod(-(-max(size_hint(group.sizes[unit]), 1) // together.get(unit, 1)) for unit in units)


def strip(group: Group, units: Iterable[Symbol]) -> int:
    """Units that a GPU program takes together."""
    along = neighbours(vector_votes(group, group.members), units)
    return min(size_hint(group.sizes[along]), GPU_STRIP) if along is not None else 1


def neighbours(votes: Mapping[Symbol, float], units: Iterable[Symbol]) -> Symbol | None:
    """The unit along which a GPU program takes neighbours in memory: that of most accesses, if a third are along it.

    The tiles of a kernel are chosen by what reaches memory, so of two layouts either may win.
    """
    found = max((unit for unit in units if unit in votes), key=lambda unit: votes[unit], default=None)
    return found if found is not None and 3 * votes[found] >= sum(votes.values()) else None


def leaves_idle(group: Group, member: Member, count: int, target: Target) -> bool:
    """Do `count` GPU programs leave multiprocessors idle while each works long on its part of the points of `member`?

    A quarter less than wanted are enough: blocks are whole, so their number is not always the best.
    """
    if 4 * count >= 3 * wanted_pieces(target):
        return False
    points = size_hint(group.points(member.symbols()))
    return points * (2 if flops(member.node.body) > ONE_EXPONENTIAL else 1) > PIECE_POINTS * max(count, 1)
