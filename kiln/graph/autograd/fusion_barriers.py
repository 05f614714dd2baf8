"""Fusion barriers: between which library ops a value lives. Fused loops keep values in registers only up to the next.

    %2 = aten.mm(x, w)           depth 1
    %3 = add(x, %2)              depth 1    read at depth 2, so it is written to memory whether it is saved or not
    %4 = aten.mm(exp(%3), w)     depth 2
    %5 = add(%3, %4)             depth 2

The depth of a value is the number of library ops on the longest path from an input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import final

from kiln.graph.ir.node import Node, base_of
from kiln.graph.prims.table import Kind


@final
class BarrierDepths:
    """Depths of a joint graph's nodes. `backward`: the nodes that need tangents."""

    def __init__(self, nodes: Iterable[Node], backward: Collection[Node]) -> None:
        self._nodes = list(nodes)
        self._backward = backward
        self._depth: dict[Node, int] = {}
        self.crossing: set[Node] = set()
        """Values of the forward that its loops read beyond a later library op."""
        for node in self._nodes:
            self._visit(node)

    def _visit(self, node: Node) -> None:
        own = max([self._depth.get(value, 0) for value in node.inputs], default=0) + (node.op.kind is Kind.LIBRARY)
        self._depth[node] = own
        if node not in self._backward and node.op.kind is not Kind.LIBRARY:
            self.crossing.update([base_of(value) for value in node.inputs if self._depth.get(value, 0) < own])

    def needed_at_several(self, ends: Collection[Node]) -> set[Node]:
        """Values that the backward needs at several depths, directly or to recompute others from them.

        `ends`: what is not recomputed.
        """
        spans: dict[Node, tuple[int, int]] = {}

        def use(node: Node, first: int, last: int) -> None:
            low, high = spans.get(node, (first, last))
            spans[node] = (min(low, first), max(high, last))

        for node in reversed(self._nodes):
            if node in self._backward:
                found = (self._depth[node], self._depth[node])
            elif node in spans and node not in ends:
                found = spans[node]
            else:
                continue
            for value in node.inputs:
                if value not in self._backward:
                    use(value, *found)
        return {node for node, (first, last) in spans.items() if first < last}
