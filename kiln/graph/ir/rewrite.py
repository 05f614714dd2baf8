"""Building a graph from another: users, dead code, replaced nodes, subgraphs.

    rewrite(graph, rule, oracle)        replaces nodes by what `rule(builder, node)` returns
    without_dead_code(graph)            removes what no output, write or effect needs
    nodes_between(nodes, inputs, values)    the nodes that compute `values` from `inputs`

Nodes are immutable: a node whose inputs are unchanged stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import UnknownRelation
from kiln.graph.prims.table import Kind
from kiln.plan.errors import ASSUMED
from kiln.symbolic import Expr, Symbol
from kiln.tensor.spec import ScalarSpec, SizeOracle, TensorSpec

Users = dict[Node, list[Node]]
NodeRule = Callable[[Builder, Node], Node | None]
"""The replacement of a node whose inputs have been replaced; None keeps the node."""


def users_of(graph: Graph) -> Users:
    """The nodes that read each node, each once, in order; outputs and writes are not users."""
    users: Users = {node: [] for node in (*graph.inputs, *graph.nodes)}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            users[value].append(node)
    return users


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same op on other inputs, with the same spec."""
    return node if inputs == node.inputs else Node(node.op, inputs, node.attrs, node.spec, node.origin)


def rewrite(
    graph: Graph, rule: NodeRule, oracle: SizeOracle, only: Collection[Node] | None = None
) -> tuple[Graph, int]:
    """The graph with `rule` applied to every node (of `only`), and how many nodes it replaced.

    A rule that asks for a relation of sizes that nobody knows does not apply. Without nodes to ask, the graph is given
    back as it is. Nodes that lose their last user stay: run
    `without_dead_code` afterwards.
    """
    if only is not None and not only:
        return graph, 0
    builder = Builder(oracle)
    replaced: dict[Node, Node] = {node: node for node in graph.inputs}
    changes = 0
    for old in graph.nodes:
        node = with_inputs(old, tuple([replaced[value] for value in old.inputs]))
        builder.origin = node.origin
        new = applied(rule, builder, node) if only is None or old in only else None
        if new is None:
            new = builder.append(node)
        else:
            changes += 1
        replaced[old] = new
    return rebuilt(graph, builder.nodes, replaced), changes


def applied(rule: NodeRule, builder: Builder, node: Node) -> Node | None:
    try:
        return rule(builder, node)
    except UnknownRelation:
        return None


def rebuilt(graph: Graph, nodes: list[Node], replaced: Mapping[Node, Node]) -> Graph:
    """`graph` with other nodes; outputs and writes take the values that replace theirs."""
    outputs = tuple([_with_value(output, replaced.get(output.value, output.value)) for output in graph.outputs])
    writes = tuple([replace(write, value=replaced.get(write.value, write.value)) for write in graph.writes])
    return Graph(graph.inputs, nodes, outputs, writes, graph.name)


def _with_value(output: Output, value: Node) -> Output:
    return output if value is output.value else replace(output, value=value)


def is_assumption(node: Node) -> bool:
    """Whether it checks what the capture has assumed of values."""
    return node.op.name == "assert" and str(node.attrs["message"]).startswith(ASSUMED)


def has_effect(node: Node) -> bool:
    """Whether it must stay even if its result is not read."""
    if node.op.kind is not Kind.NESTED:
        return node.op.kind is Kind.EFFECT
    return any(inner.op.kind is Kind.EFFECT for graph in nested_graphs(node) for inner in all_nodes(graph))


def nested_graphs(node: Node) -> list[Graph]:
    """The graphs among its attributes: branches, the body of a loop, a region."""
    return [value for value in node.attrs.values() if isinstance(value, Graph)]


def with_nested(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with `change` applied to the nested graphs of its nodes."""
    if not any(node.op.kind is Kind.NESTED for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    replaced: dict[Node, Node] = {node: node for node in graph.inputs}
    for old in graph.nodes:
        node = with_inputs(old, tuple([replaced[value] for value in old.inputs]))
        if node.op.kind is Kind.NESTED:
            attrs = {key: change(value) if isinstance(value, Graph) else value for key, value in node.attrs.items()}
            node = Node(node.op, node.inputs, attrs, node.spec, node.origin)
        nodes.append(node)
        replaced[old] = node
    return rebuilt(graph, nodes, replaced)


def all_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, and those of the graphs in them."""
    for node in graph.nodes:
        yield node
        if node.op.kind is Kind.NESTED:
            for nested in nested_graphs(node):
                yield from all_nodes(nested)


def live_nodes(nodes: Sequence[Node], roots: Iterable[Node]) -> set[Node]:
    """What `roots` and the effects among `nodes` (in order) need, themselves included."""
    live = set(roots)
    for node in reversed(nodes):
        if node in live or has_effect(node):
            live.add(node)
            live.update(node.inputs)
    return live


def live_where(graph: Graph, wanted: Callable[[Node], bool]) -> list[Node]:
    """The live nodes that are `wanted`, in order."""
    found = [node for node in graph.nodes if wanted(node)]
    live = live_nodes(graph.nodes, graph.roots()) if found else ()
    return [node for node in found if node in live]


def without_dead_code(graph: Graph) -> tuple[Graph, int]:
    """The graph without unneeded nodes, and how many were removed."""
    live = live_nodes(graph.nodes, graph.roots())
    kept = [node for node in graph.nodes if node in live]
    removed = len(graph.nodes) - len(kept)
    return (rebuilt(graph, kept, {}), removed) if removed else (graph, 0)


def computed_from(nodes: Iterable[Node], start: Iterable[Node]) -> set[Node]:
    """`start` and those of `nodes` (in order) that are computed from it."""
    found = set(start)
    for node in nodes:
        if not found.isdisjoint(node.inputs):
            found.add(node)
    return found


def needed_by(nodes: Sequence[Node], values: Iterable[Node], inputs: Collection[Node] = ()) -> set[Node]:
    """`values` and what they are computed from, among `nodes` (in order), going no further than `inputs`."""
    found = set(values)
    for node in reversed(nodes):
        if node in found and node not in inputs:
            found.update(node.inputs)
    return found


def nodes_between(nodes: Sequence[Node], inputs: Collection[Node], values: Iterable[Node]) -> list[Node]:
    """Those of `nodes` (in order) that compute `values` from `inputs`."""
    needed = needed_by(nodes, values, inputs)
    return [node for node in nodes if node in needed and node not in inputs]


def symbols_of(nodes: Iterable[Node]) -> frozenset[Symbol]:
    """The symbols in specs and attributes of `nodes`."""
    return frozenset().union(*[symbols_in((node.spec, *node.attrs.values())) for node in nodes])


def missing_symbols(nodes: Sequence[Node], inputs: Sequence[Node]) -> list[Symbol]:
    """Symbols in `nodes` and `inputs` that are not themselves a size or a stride of an input."""
    bound = {
        size
        for node in inputs
        if isinstance(spec := node.spec, TensorSpec)
        for size in (*spec.sizes, *spec.strides)
        if isinstance(size, Symbol)
    }
    return sorted(symbols_of([*inputs, *nodes]) - bound, key=lambda symbol: symbol.sort_key)


def symbols_read(nodes: Iterable[Node]) -> frozenset[Symbol]:
    """The symbols that `nodes` read on the host, such as how many elements of a mask are true."""
    found = [node.spec.value for node in nodes if node.op.name == "local_scalar" and isinstance(node.spec, ScalarSpec)]
    return frozenset([value for value in found if isinstance(value, Symbol)])


def symbols_in(value: object) -> frozenset[Symbol]:
    """The symbols in a spec or an attribute, such as a nested graph, besides those that the graph reads itself."""
    if isinstance(value, Graph):
        return symbols_of([*value.inputs, *value.nodes]) - symbols_read(value.nodes)
    if isinstance(value, TensorSpec):
        return symbols_in((*value.sizes, *value.strides, value.offset))
    if isinstance(value, ScalarSpec):
        return symbols_in(value.value)
    if isinstance(value, tuple):
        return frozenset().union(*map(symbols_in, value))
    return value.free_symbols() if isinstance(value, Expr) else frozenset()
