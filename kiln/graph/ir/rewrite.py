"""Building a graph from another: users, dead code, node maps, cut-outs.

    rewrite(graph, rule, oracle)    each node through `rule(builder, node)`, inputs mapped first
    without_dead_code(graph)        what no output, write or effect needs goes
    cut_out(inputs, values)         the nodes between, in order

Nodes are immutable: a node whose inputs are unchanged is kept as the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph, Output, Write
from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind
from kiln.tensor.spec import SizeOracle

Users = dict[Node, list[Node]]
NodeRule = Callable[[Builder, Node], Node | None]
"""A node whose inputs are mapped already; the result takes its place (None: it stays)."""


def users_of(graph: Graph) -> Users:
    """The nodes that read each node, each once, in order; outputs and writes do not count."""
    users: Users = {node: [] for node in (*graph.inputs, *graph.nodes)}
    for node in graph.nodes:
        for one in dict.fromkeys(node.inputs):
            users[one].append(node)
    return users


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same op on other inputs; the spec is taken over."""
    return node if inputs == node.inputs else Node(node.op, inputs, node.attrs, node.spec, node.origin)


def rewrite(
    graph: Graph, rule: NodeRule, oracle: SizeOracle, only: Collection[Node] | None = None
) -> tuple[Graph, int]:
    """The graph with `rule` applied to every node (of `only`), and how many nodes it replaced.

    What `rule` makes through the builder stands before the node. Nodes that lose their last user
    stay: run `without_dead_code` after.
    """
    builder = Builder(oracle)
    place: dict[Node, Node] = {node: node for node in graph.inputs}
    changes = 0
    for old in graph.nodes:
        node = with_inputs(old, tuple([place[one] for one in old.inputs]))
        builder.origin = node.origin
        new = rule(builder, node) if only is None or old in only else None
        if new is None:
            new = builder.append(node)
        else:
            changes += 1
        place[old] = new
    return rebuilt(graph, builder.nodes, place), changes


def rebuilt(graph: Graph, nodes: list[Node], place: Mapping[Node, Node]) -> Graph:
    """`graph` with other nodes, its outputs and writes mapped by `place`."""
    outputs = tuple([_with_value(one, place.get(one.value, one.value)) for one in graph.outputs])
    writes = tuple([Write(one.target, place.get(one.value, one.value)) for one in graph.writes])
    return Graph(graph.inputs, nodes, outputs, writes, graph.name)


def _with_value(output: Output, value: Node) -> Output:
    return output if value is output.value else replace(output, value=value)


def has_effect(node: Node) -> bool:
    """It must stay even where nobody reads its result."""
    return node.op.kind is Kind.EFFECT or (node.op.kind is Kind.NESTED and _holds_effect(node))


def _holds_effect(node: Node) -> bool:
    graphs = [value for value in node.attrs.values() if isinstance(value, Graph)]
    return any(has_effect(inner) for graph in graphs for inner in graph.nodes)


def live_nodes(nodes: Sequence[Node], roots: Iterable[Node]) -> set[Node]:
    """What `roots` and the effects among `nodes` (in order) need, themselves included."""
    live = set(roots)
    for node in reversed(nodes):
        if node in live or has_effect(node):
            live.add(node)
            live.update(node.inputs)
    return live


def without_dead_code(graph: Graph) -> tuple[Graph, int]:
    """The graph without nodes that nothing needs, and how many went."""
    live = live_nodes(graph.nodes, graph.roots())
    kept = [node for node in graph.nodes if node in live]
    gone = len(graph.nodes) - len(kept)
    return (rebuilt(graph, kept, {}), gone) if gone else (graph, 0)


def cut_out(nodes: Iterable[Node], inputs: Collection[Node], values: Iterable[Node]) -> list[Node]:
    """Of `nodes` (in order) those that `values` need, going no further than `inputs`."""
    ordered = list(nodes)
    needed = set(values)
    for node in reversed(ordered):
        if node in needed and node not in inputs:
            needed.update(node.inputs)
    return [node for node in ordered if node in needed and node not in inputs]
