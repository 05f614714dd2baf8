"""The groups in a legal order: each after those it depends on.

    a   b(a)   c   d(a, c)          fusing d into a: c moves before a; b stays behind
    a   b(a)   d(a, b)              fusing d into a is not legal: b stands between

The order is kept legal at every step, so a path between two groups can only run through those between them.
"""

from __future__ import annotations

from typing import final

from kiln.loops.fusion.group import Group

WINDOW = 200
"""Groups between two that are still considered for fusion: keeps the whole linear in the size of the program."""


def current(group: Group) -> Group:
    """The group that `group` has been fused into."""
    while group.merged_into is not None:
        group = group.merged_into
    return group


@final
class GroupOrder:
    def __init__(self) -> None:
        self.groups: list[Group] = []

    def append(self, group: Group) -> None:
        group.position = len(self.groups)
        self.groups.append(group)

    def before(self, group: Group) -> set[Group]:
        """Direct dependencies as they are now."""
        group.after = {current(one) for one in group.after} - {group}
        return group.after

    def barriers(self, group: Group) -> set[Group]:
        group.barriers = {current(one) for one in group.barriers} - {group}
        return group.barriers

    def can_fuse(self, first: Group, second: Group) -> bool:
        """May `second`, which stands behind `first`, join it?"""
        if first in self.barriers(second) or second.position - first.position > WINDOW:
            return False
        return self._needed(first, second) is not None

    def _needed(self, first: Group, second: Group) -> set[Group] | None:
        """Groups between the two that `second` depends on; None where one of them depends on `first`."""
        needed = set(self.before(second)) - {first}
        for place in range(second.position - 1, first.position, -1):
            group = self.groups[place]
            if group in needed:
                before = self.before(group)
                if first in before:
                    return None
                needed |= before
        return needed

    def fuse(self, first: Group, second: Group) -> None:
        """Put `second` into `first`; what it needs moves before `first`."""
        needed = self._needed(first, second)
        assert needed is not None
        start, end = first.position, second.position
        between = self.groups[start + 1 : end]
        moved = [one for one in between if one in needed]
        moved += [first, *(one for one in between if one not in needed)]
        self.groups[start : end + 1] = moved
        for place in range(start, len(self.groups)):
            self.groups[place].position = place
        second.merged_into = first
        first.after = self.before(first) | (self.before(second) - {first})
        first.barriers = self.barriers(first) | self.barriers(second)
