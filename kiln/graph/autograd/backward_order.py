"""The order of a backward that computes values of the forward again, and the memory that it takes.

    saved: %3                 nodes in the order of the forward        late: in front of the first reader
                              %5 = exp(%3)                             %6 = sum(%3)
                              %6 = sum(%3)                             %8 = mul(%7, %6)
                              %8 = mul(%7, %6)                         %5 = exp(%3)
                              %9 = mul(%8, %5)                         %9 = mul(%8, %5)

The less is saved, the more must be computed again from the start, and then waits for its layer: from some point on a
backward needs more memory than one for which more was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

from kiln.graph.autograd.min_cut import Sides
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import nodes_between
from kiln.graph.prims.table import Kind


def late_recomputation(nodes: Sequence[Node]) -> list[Node]:
    """The order in which recomputed values of the forward come right before their first reader.

    This shortens their lifetimes, and keeps the nodes of a layer's backward together: equal layers are equal runs of
    nodes, although the backward visits them from last to first.
    """
    recomputed = {node for node in nodes if node.origin is not None and not node.origin.backward}
    order: dict[Node, None] = {}
    for node in nodes:
        stack = [] if node in recomputed else [node]
        while stack:
            waiting = [value for value in stack[-1].inputs if value in recomputed and value not in order]
            if waiting:
                stack.append(waiting[0])
            else:
                order[stack.pop()] = None
    order.update(dict.fromkeys(nodes))
    return list(order)


def peak_of_backward(
    sides: Sides, saved: Collection[Node], on_host: Collection[Node], size: Callable[[Node], int]
) -> int:
    """Bytes that are held at most while the backward runs from `saved`: these, gradients, and what is read later on.

    Inputs of the forward are not counted, nor what is `on_host`, as it is back for a short time only, nor what is used
    up before the next library call, as it is fused. `size`: the bytes of a value.
    """
    given = set(sides.primals)
    tangents = {value for node in sides.backward for value in node.inputs if value.op.name == "input"}
    nodes = late_recomputation(nodes_between(sides.nodes, {*saved, *given, *tangents}, sides.gradients))

    def owner(node: Node) -> Node:
        """The node whose memory it is a view of."""
        while node.op.kind is Kind.VIEW and node not in saved:
            node = node.inputs[0]
        return node

    ends: dict[Node, int] = {}
    for place, node in enumerate(nodes):
        ends.update(dict.fromkeys(map(owner, (node, *node.inputs)), place))
    ends.update(dict.fromkeys(map(owner, sides.gradients), len(nodes)))
    last: list[list[Node]] = [[] for _ in range(len(nodes) + 1)]
    for node, place in ends.items():
        last[place].append(node)
    stages = list(accumulate((node.op.kind is Kind.LIBRARY for node in nodes), initial=0))
    held = set(saved) - given - set(on_host)
    now = peak = sum(map(size, held))
    for place, node in enumerate(nodes):
        read_later = (
            node.op.kind is not Kind.CREATE and stages[min(ends[owner(node)], len(nodes) - 1) + 1] > stages[place]
        )
        if node.op.kind is Kind.LIBRARY or (read_later and owner(node) is node):
            held.add(node)
            now += size(node)
        peak = max(peak, now)
        ended = held.intersection(last[place])
        held -= ended
        now -= sum(map(size, ended))
    return peak
