"""Drops results of branches and loops that nothing reads, and what only they are computed from.

    %3: (i64[], f32[4]) = while_loop(%0, %1, ...)        %3: (i64[],) = while_loop(%0, ...)
    %4: i64[] = item(%3, index=0)                  =>    %4: i64[] = item(%3, index=0)
    return %4                                            return %4

A carried value of a loop stays if a result that is read, or the test, depends on it in some turn. So the loop that
counts the turns of a differentiated `while_loop` computes no more than its test needs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast, final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.rewrite import all_nodes, has_effect, live_nodes, nested_graphs, rebuilt, with_inputs, with_nested
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True)
class UnusedStates:
    name: str = "unused-states"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        return without_unused_states(graph)


def without_unused_states(graph: Graph) -> tuple[Graph, int]:
    """The graph, and how many results were dropped."""
    dropped = 0
    live = live_nodes(graph.nodes, graph.roots())
    read: dict[Node, set[int]] = {}
    for node in graph.nodes:
        if node.op.name == "item" and node in live:
            read.setdefault(node.inputs[0], set()).add(node.attrs["index"])
    nodes: list[Node] = []
    replaced = {node: node for node in graph.inputs}
    places: dict[Node, list[int]] = {}
    for old in graph.nodes:
        if old.op.name == "item" and old.inputs[0] in places:
            kept = places[old.inputs[0]]
            if old.attrs["index"] not in kept:
                continue
            attrs: dict[str, Attr] = {"index": kept.index(old.attrs["index"])}
            node = Node(old.op, (replaced[old.inputs[0]],), attrs, old.spec, old.origin)
        else:
            node = with_inputs(old, tuple([replaced[value] for value in old.inputs]))
        if old in live and old.op.name in KEPT and not has_effects_inside(old):
            kept = KEPT[old.op.name](old, read.get(old, set()))
            count = len(cast(Sequence[object], old.spec))
            if 0 < len(kept) < count:
                node, places[old], dropped = with_results(node, kept), kept, dropped + count - len(kept)
        replaced[old] = node
        nodes.append(node)
    if dropped:
        graph = rebuilt(graph, nodes, replaced)
    inner = 0

    def within(nested: Graph) -> Graph:
        nonlocal inner
        nested, found = without_unused_states(nested)
        inner += found
        return nested

    changed = with_nested(graph, within)
    return (changed, dropped + inner) if inner else (graph, dropped)


def has_effects_inside(node: Node) -> bool:
    """Random draws count: which numbers later ones give may depend on them."""
    inside = [inner for graph in nested_graphs(node) for inner in all_nodes(graph)]
    return any(has_effect(inner) or inner.op.kind is Kind.RANDOM for inner in inside)


# Which results stay.


def kept_of_while(node: Node, read: Collection[int]) -> list[int]:
    test, body = node.attrs["test"], node.attrs["body"]
    count = len(body.outputs)
    return turns_need(body, {*read, *[n for n in inputs_read(test, range(len(test.outputs))) if n < count]}, count)


def turns_need(body: Graph, needed: set[int], carried: int) -> list[int]:
    """`needed` results, and the carried values that they depend on in some turn."""
    count = -1
    while count != len(needed):
        count = len(needed)
        needed |= {n for n in inputs_read(body, needed) if n < carried}
    return sorted(needed)


def inputs_read(graph: Graph, outputs: Collection[int]) -> list[int]:
    live = live_nodes(graph.nodes, [graph.outputs[number].value for number in outputs])
    return [number for number, value in enumerate(graph.inputs) if value in live]


KEPT = {
    "while_loop": kept_of_while,
    "scan": lambda node, read: turns_need(node.attrs["body"], set(read), node.attrs["carried"]),
}


# The node with these results.


def with_results(node: Node, kept: list[int]) -> Node:
    attrs = dict(node.attrs)
    body: Graph = attrs["body"]
    carried: int = attrs["carried"] if node.op.name == "scan" else len(body.outputs)
    states = [number for number in kept if number < carried]
    inputs = [*states, *range(carried, len(node.inputs))]
    attrs["body"] = restricted(body, inputs, kept)
    if node.op.name == "scan":
        attrs["carried"] = len(states)
    else:
        attrs["test"] = restricted(attrs["test"], inputs, range(len(attrs["test"].outputs)))
    spec = tuple([cast(Sequence[TensorSpec], node.spec)[number] for number in kept])
    return Node(node.op, tuple([node.inputs[number] for number in inputs]), attrs, spec, node.origin)


def restricted(graph: Graph, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    """`graph` of some of its inputs, with some of its outputs."""
    kept = [graph.outputs[number] for number in outputs]
    live = live_nodes(graph.nodes, [output.value for output in kept])
    new: dict[Node, Node] = {}
    for place, number in enumerate(inputs):
        old = graph.inputs[number]
        new[old] = Node(old.op, (), {**old.attrs, "index": place}, old.spec, old.origin)
    nodes = [node for node in graph.nodes if node in live]
    for node in nodes:
        new[node] = with_inputs(node, tuple([new[value] for value in node.inputs]))
    results = tuple([replace(output, value=new[output.value]) for output in kept])
    given = tuple([new[graph.inputs[number]] for number in inputs])
    return Graph(given, [new[node] for node in nodes], results, (), graph.name)
