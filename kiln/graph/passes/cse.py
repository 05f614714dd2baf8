"""Common-subexpression elimination.

    %2 = add(%0, %1)              %2 = add(%0, %1)
    %3 = add(%1, %0)      =>      %4 = mul(%2, %2)
    %4 = mul(%2, %3)

Two nodes are equal if op, inputs, attributes and specs are and the op is pure; inputs of a commutative op are
unordered. Random library ops are never equal.
Needs: a functional graph.  Keeps: the order of the remaining nodes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.rewrite import rebuilt, with_inputs
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import is_random
from kiln.support.records import dataclass


@final
@dataclass(frozen=True)
class Cse:
    name: str = "cse"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        return merge_equal_nodes(graph)


def merge_equal_nodes(graph: Graph) -> tuple[Graph, int]:
    """The graph with each value computed once, and how many nodes were removed."""
    first: dict[Hashable, Node] = {}
    replaced: dict[Node, Node] = {}
    kept: list[Node] = []
    for old in graph.nodes:
        node = with_inputs(old, tuple([replaced.get(value, value) for value in old.inputs]))
        key = node_key(node)
        if key is not None:
            found = first.setdefault(key, node)
            if found is not node and found.spec == node.spec:
                replaced[old] = found
                continue
        kept.append(node)
        if node is not old:
            replaced[old] = node
    removed = len(graph.nodes) - len(kept)
    return (rebuilt(graph, kept, replaced), removed) if removed else (graph, 0)


MIXED = frozenset({"constant", "iota", "aten", "pad"})
"""Ops with attributes of mixed types, so that 1, 1.0 and True must be told apart."""


def node_key(node: Node) -> Hashable | None:
    """Equal for nodes that compute the same; None for nodes equal to no other."""
    op = node.op
    if not op.pure or (op.kind is Kind.LIBRARY and is_random(node.attrs["target"])):
        return None
    inputs = list(map(id, node.inputs))
    if op.commutative:
        inputs.sort()
    attrs: Hashable = None
    if node.attrs:
        values = tuple(node.attrs.values())
        attrs = exact(values) if op.name in MIXED else values
    return op.name, tuple(inputs), attrs


def exact(value: Attr) -> Hashable:
    """A key that distinguishes 1 from 1.0 and True, and 0.0 from -0.0."""
    kind = type(value)
    if isinstance(value, tuple):
        return tuple([exact(part) for part in value])
    if kind is float or kind is complex:
        return kind, repr(value)
    return (kind, value) if isinstance(value, bool) else value  # type: ignore[return-value]
