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
from kiln.loops.fusion.order import GroupOrder, current
from kiln.loops.program.nodes import Buffer
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Symbol
from kiln.tensor.size_hint import size_hint

LAUNCH_BYTES = 1 << 14
"""Bytes that could be moved in the time of a launch."""
NEAR = 200
"""Groups that are no further apart may be fused for what is saved, however long results then wait for their readers."""


@final
@dataclass(frozen=True, slots=True)
class FusionContext:
    """What decisions depend on besides the two groups."""

    buffers: Mapping[str, Buffer]
    graph: Dependencies
    order: GroupOrder
    symbols: GroupSymbols
    target: Target
    landing: Mapping[str, str]
    """Results by the argument that they are written back to (`lifetimes.py`)."""

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
    def distance(self) -> int:
        return self.context.order.distance(self.first, self.second)

    @cached_property
    def needed(self) -> set[Group]:
        """Groups between the two that must run before both, and `first` where one of them depends on it."""
        return self.context.order.needed_between(self.first, self.second, NEAR)

    @cached_property
    def saved_bytes(self) -> int:
        context = self.context
        total = sum(context.bytes(name) for name in self.shared)
        for name in {link.access.buffer for link in self.links}:
            total += context.bytes(name) * (2 if self.is_private(name) else 1)
        return total

    @cached_property
    def held_bytes(self) -> int:
        """Bytes of results that wait for their readers from `first` on, not only from `second` on.

        What a result is written back to waits anyway, unless it is read in between.
        """
        context, held = self.context, 0
        for member in (*self.second.members, *(member for group in self.needed for member in group.members)):
            target = context.landing.get(member.out)
            lands = target is not None and not any(
                current(reader).position > self.first.position and current(reader) is not self.second
                for reader in context.graph.readers(target)
            )
            held += 0 if lands or self.is_private(member.out) else context.bytes(member.out)
        return held

    def is_private(self, name: str) -> bool:
        """Does nothing but the pair read a buffer?"""
        uses = self.context.graph.uses[name]
        return not uses.kept and all(number in self._numbers for number in uses.readers)

    @cached_property
    def _numbers(self) -> set[int]:
        return {member.number for member in self.members}

    def sides(self) -> Iterator[tuple[Group, Mapping[Symbol, Symbol]]]:
        """Each group, with the names of its symbols in the common space."""
        yield self.first, {}
        yield self.second, self.space.names
