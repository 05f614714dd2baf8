"""What fusing two groups is measured by: bytes that stay out of memory, against bytes that a worse loop moves.

y = exp(x); z = y + 1        saved: y written and read, or only read where y is needed elsewhere too
traffic of a group           each buffer once; of a table that is looked up only what is picked
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import final

from kiln.loops.fusion.align import CommonSpace, Dependency, dependencies
from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.group import Group, GroupSymbols, Member
from kiln.loops.fusion.order import GroupOrder
from kiln.loops.program.nodes import Buffer
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Symbol
from kiln.tensor.size_hint import size_hint

LAUNCH_BYTES = 1 << 14
"""Bytes that could be moved in the time of a launch."""


@final
@dataclass(frozen=True, slots=True)
class FusionContext:
    """What decisions depend on besides the two groups."""

    buffers: Mapping[str, Buffer]
    graph: Dependencies
    order: GroupOrder
    symbols: GroupSymbols
    target: Target

    def bytes(self, name: str) -> int:
        spec = self.buffers[name].spec
        return size_hint(spec.numel()) * spec.dtype.itemsize

    def traffic(self, group: Group) -> int:
        """Bytes that the group moves."""
        moved: dict[str, int] = {}
        for member in group.members:
            picked = group.points_hint(member.symbols()) * member.node.out.spec.dtype.itemsize
            for access in member.accesses():
                moved[access.buffer] = min(self.bytes(access.buffer), picked)
        return sum(moved.values())


@final
class Pair:
    """Two groups, `first` before `second`, and the `space` that the rule at hand has found for both."""

    def __init__(self, first: Group, second: Group, context: FusionContext) -> None:
        self.first, self.second, self.context = first, second, context
        self.space = CommonSpace({}, {})

    @cached_property
    def links(self) -> tuple[Dependency, ...]:
        return tuple(dependencies(self.first, self.second))

    @property
    def members(self) -> list[Member]:
        return [*self.first.members, *self.second.members]

    @cached_property
    def shared(self) -> set[str]:
        """Buffers that both read and neither writes."""
        made = self.first.writers().keys() | self.second.writers().keys()
        ours, theirs = (
            {access.buffer for member in group.members for access in member.reads}
            for group in (self.first, self.second)
        )
        return (ours & theirs) - made

    @cached_property
    def saved_bytes(self) -> int:
        context = self.context
        total = sum(context.bytes(name) for name in self.shared)
        inside = {member.number for member in self.members}
        for name in {link.access.buffer for link in self.links}:
            uses = context.graph.uses[name]
            private = not uses.kept and all(number in inside for number in uses.readers)
            total += context.bytes(name) * (2 if private else 1)
        return total

    def sides(self) -> Iterator[tuple[Group, Mapping[Symbol, Symbol]]]:
        """Each group, with the names of its symbols in the common space."""
        yield self.first, {}
        yield self.second, self.space.names
