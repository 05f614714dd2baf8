"""The groups in a legal order: each after those it depends on.

    a   b(a)   c   d(a, c)          fusing d into a: c moves before a; b stays behind
    a   b(a)   d(a, b)              fusing d into a is not legal: b stands between

The order is kept legal at every step, so a path between two groups can only run through those between them. Positions
have gaps, which moved groups fill: a fusion costs what it moves, not the distance that it moves it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import final

from kiln.loops.fusion.group import Group

GAP = 1 << 16
"""Between the positions of neighbours."""


def current(group: Group) -> Group:
    """The group that `group` has been fused into."""
    while group.merged_into is not None:
        group = group.merged_into
    return group


def position(group: Group) -> int:
    return group.position


@final
class GroupOrder:
    """All groups, in an order in which they may run."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def append(self, group: Group) -> None:
        group.position = self.groups[-1].position + GAP if self.groups else 0
        self.groups.append(group)

    def place(self, group: Group) -> int:
        """How many groups are in front of `group`."""
        return bisect_left(self.groups, group.position, key=position)

    def distance(self, first: Group, second: Group) -> int:
        return self.place(second) - self.place(first)

    def before(self, group: Group) -> set[Group]:
        """Direct dependencies as they are now."""
        group.after = {current(other) for other in group.after} - {group}
        return group.after

    def barriers(self, group: Group) -> set[Group]:
        """Groups that must run before `group` as kernels of their own."""
        group.barriers = {current(other) for other in group.barriers} - {group}
        return group.barriers

    def needed_between(self, first: Group, second: Group, most: int) -> set[Group]:
        """Groups between the two that `second` depends on, and `first` where one of them depends on it.

        More than `most` are not all found.
        """
        found = {group for group in self.before(second) if group.position > first.position}
        to_visit = list(found)
        while to_visit and len(found) <= most:
            before = self.before(to_visit.pop())
            further = {group for group in before if group.position >= first.position} - found
            found |= further
            to_visit += further - {first}
        return found

    def fuse(self, first: Group, second: Group, needed: set[Group]) -> None:
        """Put `second` into `first`; what it `needs` of the groups between them moves before `first`."""
        moved = sorted(needed, key=position)
        for group in (*moved, second):
            del self.groups[self.place(group)]
        place = self.place(first)
        last = self.groups[place - 1].position if place else first.position - GAP
        self.groups[place:place] = moved
        for number, group in enumerate(moved, 1):
            group.position = last + number
        if last + len(moved) >= first.position:
            self._number()
        second.merged_into = first
        first.after = self.before(first) | (self.before(second) - {first})
        first.barriers = self.barriers(first) | self.barriers(second)

    def _number(self) -> None:
        for number, group in enumerate(self.groups):
            group.position = number * GAP
