"""What becomes of a value that a later phase of the same kernel reads: computed again, kept in a row, or stored.

t[g1] = exp(x[g0, g1]); total = sum of t over g1; out[g0, g1] = t[g1] / total

CPU   t is a row on the stack: stored in the first phase, loaded in the second
GPU   exp(x) stands in both phases; if the row fits into registers, the printer gives equal texts one name
"""

from __future__ import annotations

from typing import Protocol, final

from kiln.loops.fusion.group import Member, MemberAccess
from kiln.loops.fusion.phases import PhasePlans, is_cheap
from kiln.loops.program.nodes import Pointwise, Scan
from kiln.symbolic import is_static

REGISTER_POINTS = 4096
"""Elements of a row that the registers of a GPU program have room for besides all else."""


class ReusePolicy(Protocol):
    """How a target passes a value on to a later phase."""

    def recomputes(self, plans: PhasePlans, writer: Member, reader: Member, access: MemberAccess, stored: bool) -> bool:
        """Is it computed again? `stored`: it is in memory anyway."""

    def in_row(self, plans: PhasePlans, name: str) -> bool:
        """Is it kept in a local? It goes through memory otherwise."""


@final
class RowsOnStack(ReusePolicy):
    """A CPU keeps values in rows on the stack, unless computing them is as cheap as a load."""

    def recomputes(self, plans: PhasePlans, writer: Member, reader: Member, access: MemberAccess, stored: bool) -> bool:
        return not stored and is_cheap(writer, plans.group.inner(writer)) and plans.forwards(writer, reader, access)

    def in_row(self, plans: PhasePlans, name: str) -> bool:
        return True


@final
class RecomputeAtPoint(ReusePolicy):
    """A GPU computes a value again wherever the reader is at its point: where the row is too long for registers,
    reading the inputs again is the best there is. Results of scans stay in registers if a row of them fits."""

    def recomputes(self, plans: PhasePlans, writer: Member, reader: Member, access: MemberAccess, stored: bool) -> bool:
        if not isinstance(writer.node, Pointwise) or writer.write.form is None:
            return False
        inner, outer = plans.group.inner(writer).keys(), plans.group.inner(reader).keys()
        return writer.write.form == access.form and inner <= outer

    def in_row(self, plans: PhasePlans, name: str) -> bool:
        writer = plans.writers[name]
        points = plans.group.points(plans.group.inner(writer))
        own = all(access.form == writer.write.form for _, access in plans.users(name))
        return own and is_static(points) and points <= REGISTER_POINTS


def values_read_later(plans: PhasePlans, stored: frozenset[str], policy: ReusePolicy) -> frozenset[str]:
    """Values that a later phase reads and does not compute again."""
    found: set[str] = set()

    def visit(reader: Member, phase: int) -> None:
        for access in reader.reads:
            writer = plans.writers.get(access.buffer)
            if writer is None or plans.phase_of[writer.out] == phase or not isinstance(writer.node, Pointwise | Scan):
                continue
            if policy.recomputes(plans, writer, reader, access, writer.out in stored):
                visit(writer, phase)
            elif writer.out not in stored:
                found.add(writer.out)

    for member in plans.group.members:
        visit(member, plans.phase_of[member.out])
    return frozenset(found)
