"""What becomes of a value that a later phase of the same kernel reads: computed again, kept in a row, or stored.

t[g1] = exp(x[g0, g1]); total = sum of t over g1; out[g0, g1] = t[g1] / total

CPU   t is a row on the stack, unless computing it is as cheap as a load
GPU   exp(x) stands in both phases: if the row fits into registers, the printer gives equal texts one name; if not,
      reading the inputs again is the best there is. Results of scans stay in registers if a row of them fits
"""

from __future__ import annotations

from kiln.loops.fusion.group import Member, MemberAccess
from kiln.loops.fusion.phases import PhasePlans, is_cheap
from kiln.loops.program.nodes import Pointwise, Scan
from kiln.support.target import Target
from kiln.symbolic import is_static

REGISTER_POINTS = 4096
"""Elements of a row that the registers of a GPU program have room for besides all else."""


def is_recomputed(
    plans: PhasePlans, writer: Member, reader: Member, access: MemberAccess, stored: bool, target: Target
) -> bool:
    """Is the value that `reader` reads of `writer` computed again? `stored`: it is in memory anyway."""
    if not target.is_gpu:
        return not stored and is_cheap(writer, plans.group.inner(writer)) and plans.forwards(writer, reader, access)
    if not isinstance(writer.node, Pointwise) or writer.write.form is None:
        return False
    inner, outer = plans.group.inner(writer).keys(), plans.group.inner(reader).keys()
    return writer.write.form == access.form and inner <= outer


def stays_in_row(plans: PhasePlans, name: str, target: Target) -> bool:
    """Is it kept in a local? It goes through memory otherwise."""
    writer = plans.writers[name]
    points = plans.group.points(plans.group.inner(writer))
    own = all(access.form == writer.write.form for _, access in plans.users(name))
    return not target.is_gpu or (own and is_static(points) and points <= REGISTER_POINTS)


def values_read_later(plans: PhasePlans, stored: frozenset[str], target: Target) -> frozenset[str]:
    """Values that a later phase reads and does not compute again."""
    found: set[str] = set()

    def visit(reader: Member, phase: int) -> None:
        for access in reader.reads:
            writer = plans.writers.get(access.buffer)
            if writer is None or plans.phase_of[writer.out] == phase or not isinstance(writer.node, Pointwise | Scan):
                continue
            if is_recomputed(plans, writer, reader, access, writer.out in stored, target):
                visit(writer, phase)
            elif writer.out not in stored:
                found.add(writer.out)

    for member in plans.group.members:
        visit(member, plans.phase_of[member.out])
    return frozenset(found)
