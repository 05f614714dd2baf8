"""Which values the link to the host carries while a forward runs.

    made at    0     2     4     6     8       time on the link of each: 3
    carried   [ %1     ] [ %3     ]            %2 would wait for %1, and then %3 for %2: it stays
                   %2 waits    ...

A value that is made first is read last: it may go first, but it also comes back last. If the link took the values of
the first layers one after the other, all of them would come back at the end of the backward, and kernels would wait. So
it takes a value only if it is free soon, and carries some values of each layer in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import final

from kiln.graph.autograd.min_cut import KEPT_KINDS, Sides
from kiln.graph.ir.node import Node
from kiln.support.host_link import HostLink


@final
class LinkQueue:
    """Times are bytes that the device moves meanwhile. What is element by element is fused with its neighbours."""

    def __init__(self, sides: Sides, link: HostLink, size: Callable[[Node], int], flops: Callable[[Node], int]) -> None:
        self.link = link
        self.size = size
        self.made_at: dict[Node, int] = {}
        self.end = 0
        for node in sides.nodes:
            if node not in sides.backward:
                if node.op.kind in KEPT_KINDS:
                    self.end += size(node) + sum(map(size, node.inputs)) + flops(node) // link.flops
                self.made_at[node] = self.end

    def taken(self, values: Iterable[Node]) -> set[Node]:
        """Those of `values`, in the order of the forward, that it carries before the forward ends: each waits at most
        as long as it is under way."""
        found: set[Node] = set()
        free_at = 0
        for node in values:
            time = self.size(node) * self.link.moved
            start = max(free_at, self.made_at[node])
            if start - self.made_at[node] <= time and start + time <= self.end:
                found.add(node)
                free_at = start + time
        return found
