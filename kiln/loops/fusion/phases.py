"""From a group to the phases of its kernel: which member runs in which loop nest.

    units {g0}    t = exp(x), over g0 g1        phase (g1):  t[g1] = exp(x); total += t
                  total = sum of t over g1      phase (g1):  out = t / total
                  out = t / total, over g0 g1

A member goes to the first phase over its own inner symbols behind all it needs. It may share a phase with what it needs
if it reads just the element that is made at the same point. A value that only one later phase uses is made there.
"""

from __future__ import annotations

from dataclasses import field
from typing import final

from kiln.loops.body.analyses import operands_of, symbols_used
from kiln.loops.body.body import Compute, Indirect, Load, Random
from kiln.loops.fusion.group import FusableNode, Group, Member, MemberAccess
from kiln.loops.program.nodes import Pointwise, Reduction, Scan
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Symbol

CHEAP_FLOPS, CHEAP_LOADS = 2, 1
"""A value that costs no more is computed again rather than kept."""


@final
@dataclass(slots=True, eq=False)
class PhasePlan:
    """`axes`: symbols of the loop nest. `finishing`: reductions whose results are stored here."""

    axes: frozenset[Symbol]
    serial: bool
    members: list[Member] = field(default_factory=list)
    finishing: list[Member] = field(default_factory=list)


@final
@dataclass
class PhasePlans:
    """Phases in order; the number of the phase of each member's buffer."""

    group: Group
    phases: list[PhasePlan] = field(default_factory=list)
    phase_of: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writers = self.group.writers()
        self._users: dict[str, list[tuple[Member, MemberAccess]]] = {}
        for member in self.group.members:
            for access in member.reads:
                if access.buffer in self.writers:
                    self._users.setdefault(access.buffer, []).append((member, access))

    def users(self, buffer: str) -> list[tuple[Member, MemberAccess]]:
        """Members that read what a member writes."""
        return self._users.get(buffer, [])

    def forwards(self, writer: Member, reader: Member, access: MemberAccess) -> bool:
        """Can the value go from `writer` to `reader` within one point of one phase?"""
        if not isinstance(writer.node, Pointwise) or isinstance(reader.node, Scan):
            return False
        same = writer.write.form is not None and access.form is not None and writer.write.form == access.form
        return same and self.group.inner(writer).keys() == self.group.inner(reader).keys()

    def numbered(self, axes: frozenset[Symbol], serial: bool, first: int) -> int:
        """The first phase over `axes` from number `first` on; a new one at the end where there is none."""
        for number in range(first, len(self.phases)):
            if self.phases[number].axes == axes and self.phases[number].serial == serial:
                return number
        self.phases.append(PhasePlan(axes, serial))
        return len(self.phases) - 1


def is_serial(node: FusableNode) -> bool:
    """Does its loop run in order, so that it cannot be vectorised along what it combines?"""
    return not node.op.is_splittable if isinstance(node, Reduction) else not isinstance(node, Pointwise)


def plan_phases(group: Group, stored: frozenset[str], target: Target) -> PhasePlans:
    """Phases for the members of `group`; `stored` are the results that others read."""
    plans = PhasePlans(group)
    for member in group.members:
        axes = frozenset(group.inner(member))
        # On a GPU an index reduction goes through blocks, as others do: a maximum and its index share a loop.
        serial = is_serial(member.node) and not (target.is_gpu and isinstance(member.node, Reduction))
        number = plans.numbered(axes, serial, _earliest(plans, member))
        plans.phases[number].members.append(member)
        plans.phase_of[member.out] = number
    _sink(plans, stored)
    for member in group.members:
        if isinstance(member.node, Reduction) and (member.out in stored or member.partial):
            # Its result is stored in the first later phase over its kept inner symbols.
            kept = frozenset(group.inner(member)) - member.reduced().keys()
            number = plans.numbered(kept, False, plans.phase_of[member.out] + 1)
            plans.phases[number].finishing.append(member)
    used = [phase for phase in plans.phases if phase.members or phase.finishing]
    numbers = {id(phase): number for number, phase in enumerate(used)}
    plans.phase_of = {name: numbers[id(plans.phases[number])] for name, number in plans.phase_of.items()}
    plans.phases = used
    return plans


def _earliest(plans: PhasePlans, member: Member) -> int:
    first = 0
    for access in member.reads:
        writer = plans.writers.get(access.buffer)
        if writer is not None:
            number = plans.phase_of[access.buffer]
            first = max(first, number if plans.forwards(writer, member, access) else number + 1)
    return first


def _sink(plans: PhasePlans, stored: frozenset[str]) -> None:
    """Values that only one later phase uses are made in it."""
    for member in reversed(plans.group.members):
        if not isinstance(member.node, Pointwise) or member.out in stored:
            continue
        number, users = plans.phase_of[member.out], plans.users(member.out)
        phases = {plans.phase_of[user.out] for user, _ in users}
        if len(phases) != 1 or (latest := phases.pop()) <= number:
            continue
        if all(plans.forwards(member, user, access) for user, access in users):
            plans.phases[number].members.remove(member)
            plans.phases[latest].members.append(member)
            plans.phases[latest].members.sort(key=lambda member: member.number)
            plans.phase_of[member.out] = latest


def is_cheap(member: Member, inner: dict[Symbol, None]) -> bool:
    """Is computing its value again no worse than loading it? What does not change along `inner` is computed once."""
    if not isinstance(member.node, Pointwise):
        return False
    moving = {axis for axis, terms in member.axis_terms.items() if any(symbol in inner for symbol, _ in terms)}
    varies: list[bool] = []
    flops = loads = 0
    for op in member.node.body.ops:
        own = isinstance(op, Indirect | Random) or not moving.isdisjoint(symbols_used(op))
        varies.append(own or any(varies[position] for position in operands_of(op)))
        if varies[-1]:
            loads += isinstance(op, Load)
            flops += op.op.flops if isinstance(op, Compute) else CHEAP_FLOPS if isinstance(op, Indirect | Random) else 0
    return flops <= CHEAP_FLOPS and loads <= CHEAP_LOADS
