"""The groups in a legal order: each after those it depends on.

    a   b(a)   c   d(a, c)          fusing d into a: c moves before a; b stays behind
    a   b(a)   d(a, b)              fusing d into a is not legal: b stands between

The order is kept legal at every step, so a path between two groups can only run through those between them.
"""

from __future__ import annotations

from typing import final

from kiln.loops.fusion.group import Group


def current(group: Group) -> Group:
    """The group that `group` has been fused into."""
    while group.merged_into is not None:
        group = group.merged_into
    return group


@final
class GroupOrder:
    """All groups, in an order in which they may run."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def append(self, group: Group) -> None:
        group.position = len(self.groups)
        self.groups.append(group)

    def before(self, group: Group) -> set[Group]:
        """Direct dependencies as they are now."""
        group.after = {current(other) for other in group.after} - {group}
        return group.after

    def barriers(self, group: Group) -> set[Group]:
        """Groups that must run before `group` as kernels of their own."""
        group.barriers = {current(other) for other in group.barriers} - {group}
        return group.barriers

    def needed_between(self, first: Group, second: Group) -> set[Group] | None:
        """Groups between the two that `second` depends on; None where one of them depends on `first`."""
        needed = set(self.before(second)) - {first}
        for position in range(second.position - 1, first.position, -1):
            group = self.groups[position]
            if group in needed:
                before = self.before(group)
                if first in before:
                    return None
                needed |= before
        return needed

    def fuse(self, first: Group, second: Group) -> None:
        """Put `second` into `first`; what it needs moves before `first`."""
        needed = self.needed_between(first, second)
        assert needed is not None
        start, end = first.position, second.position
        between = self.groups[start + 1 : end]
        moved = [group for group in between if group in needed]
        moved += [first, *(group for group in between if group not in needed)]
        self.groups[start : end + 1] = moved
        for position in range(start, len(self.groups)):
            self.groups[position].position = position
        second.merged_into = first
        first.after = self.before(first) | (self.before(second) - {first})
        first.barriers = self.barriers(first) | self.barriers(second)
