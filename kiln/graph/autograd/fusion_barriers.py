"""Between which library ops a value lives: fused loops keep values in registers only as far as the next one.

    %2 = aten.mm(x, w)           stage 1
    %3 = add(x, %2)              stage 1    read in stage 2, so written to memory whether it is saved or not
    %4 = aten.mm(exp(%3), w)     stage 2
    %5 = add(%3, %4)             stage 2

A stage is the number of library ops on the longest way from an input.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import final

from kiln.graph.ir.node import Node, base_of
from kiln.graph.prims.table import Kind


@final
class BarrierDepths:
    """BarrierDepths of a joint graph's nodes. `backward`: those that need tangents."""

    def __init__(self, nodes: Iterable[Node], backward: Collection[Node]) -> None:
        self._nodes = list(nodes)
        self._backward = backward
        self._stage: dict[Node, int] = {}
        self.crossing: set[Node] = set()
        """Values of the forward that its loops read behind a library op that came after them."""
        for node in self._nodes:
            self._place(node)

    def _place(self, node: Node) -> None:
        own = max([self._stage.get(one, 0) for one in node.inputs], default=0) + (node.op.kind is Kind.LIBRARY)
        self._stage[node] = own
        if node not in self._backward and node.op.kind is not Kind.LIBRARY:
            self.crossing.update([base_of(one) for one in node.inputs if self._stage.get(one, 0) < own])

    def used_apart(self, ends: Collection[Node]) -> set[Node]:
        """Values that several stages of the backward need, themselves or for values that are computed again.

        `ends`: what is not computed again.
        """
        spans: dict[Node, tuple[int, int]] = {}

        def use(node: Node, first: int, last: int) -> None:
            low, high = spans.get(node, (first, last))
            spans[node] = (min(low, first), max(high, last))

        for node in reversed(self._nodes):
            if node in self._backward:
                found = (self._stage[node], self._stage[node])
            elif node in spans and node not in ends:
                found = spans[node]
            else:
                continue
            for one in node.inputs:
                if one not in self._backward:
                    use(one, *found)
        return {node for node, (first, last) in spans.items() if first < last}
