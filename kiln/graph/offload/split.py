"""Which nodes of a graph another compiler gets, in as few convex parts as there can be.

    backend: takes add, mul          parts of doubling: 2, with 3 of 5 nodes
                                         part 0: %2, %3      takes %0, %1      gives %3
    %2 = add(%0, %1)                     part 1: %5          takes %3, %4      gives %5
    %3 = mul(%2, %2)                     stays: cumsum (only add and mul): %4
    %4 = cumsum(%3)
    %5 = add(%4, %3)

The depth of a node is the number of times that the path to it with most changes goes from a node that stays to one
that is taken. All taken nodes of one depth are a part: a path between two of them through a node that stays would
raise the depth. No split has fewer parts: that path needs as many. Random numbers and effects keep their order, which
counts as a path.

Views, numbers and other values without inputs belong to no part: each part that reads them computes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import has_effect, symbols_in, users_of
from kiln.graph.ir.text import value_names
from kiln.graph.offload.part import GraphBackend
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import draws, is_random
from kiln.support.records import dataclass
from kiln.symbolic import Symbol
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

LEAST_NODES = 2
"""A part with fewer nodes that compute is not worth a call."""


@final
@dataclass(frozen=True, slots=True)
class PartNodes:
    """A part: its nodes in order, the values of the graph that it reads, and those that it gives."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


@final
@dataclass(frozen=True, slots=True)
class Split:
    """`parts` by depth, `kept` what runs outside of them: nodes that stay, and views of what the parts give.

    `refused`: why nodes stay.
    """

    graph: Graph
    backend: str
    parts: tuple[PartNodes, ...]
    kept: tuple[tuple[Node, ...], ...]
    """Before the first part, between the parts, behind the last."""
    refused: Mapping[Node, str] = field(default_factory=dict)

    def text(self) -> str:
        """The parts, and the reason of each node that stays."""
        names = value_names(self.graph)
        count = self.count()
        lines = [f"parts of {self.backend}: {len(self.parts)}, with {count} of {len(self.graph.nodes)} nodes"]
        for number, part in enumerate(self.parts):
            shown = [", ".join(names[node] for node in nodes) for nodes in (part.nodes, part.inputs, part.outputs)]
            lines.append("    part {}: {} | takes {} | gives {}".format(number, *shown))
        stays: dict[str, list[str]] = defaultdict(list)
        for node, reason in self.reasons().items():
            stays[reason].append(names[node])
        lines += [f"    stays: {reason}: {', '.join(nodes)}" for reason, nodes in stays.items()]
        return "\n".join(lines)

    def count(self) -> int:
        """How many nodes are in parts."""
        return len({node for part in self.parts for node in part.nodes})

    def reasons(self) -> dict[Node, str]:
        """Why nodes stay, with the names of their ops."""
        return {node: f"{node.attrs.get('target', node.op.name)} ({reason})" for node, reason in self.refused.items()}


def split(graph: Graph, backend: GraphBackend) -> Split:
    """Ask the backend for every node."""
    return Splitter(graph, backend).run()


def refusal(node: Node, backend: GraphBackend) -> str:
    """Why a node stays, be it for all backends; "" if it may go."""
    if keeps_order(node):
        return "an effect" if has_effect(node) else "random numbers are drawn in eager's order"
    specs = [node.spec, *[value.spec for value in node.inputs]]
    return backend.refusal(node) if all(map(is_dense, specs)) else "a number of the host"


def keeps_order(node: Node) -> bool:
    """Whether it stays in order with others: it has an effect, or draws random numbers."""
    target = node.attrs.get("target")
    if target is not None and is_random(target):
        return draws(target, node.attrs["args"], node.attrs["kwargs"])
    return has_effect(node) or node.op.kind in (Kind.RANDOM, Kind.DRAW)


def is_dense(spec: Spec | None) -> bool:
    """A tensor, or several results that are tensors or nothing."""
    if isinstance(spec, tuple):
        return not any(isinstance(part, ScalarSpec) for part in spec)
    return isinstance(spec, TensorSpec)


@final
class Splitter:
    """The state of one split: who is taken, and the depth of each node."""

    def __init__(self, graph: Graph, backend: GraphBackend) -> None:
        self.graph, self.backend = graph, backend
        self.users = users_of(graph)
        self.results = set(graph.roots())
        self.refused: dict[Node, str] = {}
        self.least = LEAST_NODES
        """Of a part; a backend that takes everything gets everything."""
        self.free: set[Node] = set()
        """Taken views, and taken nodes without inputs: whoever reads them computes them."""
        self.depth: dict[Node, int] = {}
        """Of taken nodes the number of their part; of others that of the last part before them, or -1."""

    def run(self) -> Split:
        self.ask()
        self.least = LEAST_NODES if self.refused else 1
        while True:
            self.measure()
            members = self.members()
            parts = [self.part(nodes) for nodes in members]
            small = [nodes for nodes, part in zip(members, parts, strict=True) if not self.is_worth(part)]
            if not small:
                break
            self.refused.update((node, "too little for a call") for nodes in small for node in nodes)
        kept = self.kept(parts)
        reasons = {node: self.refused[node] for nodes in kept for node in nodes if node in self.refused}
        return Split(self.graph, self.backend.name, tuple(parts), kept, reasons)

    def ask(self) -> None:
        """Whether each node is taken; all `item`s of a call with several results go with it."""
        for node in self.graph.nodes:
            if node.op.name == "item":
                reason = self.refused.get(node.inputs[0], "")
            else:
                reason = refusal(node, self.backend)
            if reason:
                self.refused[node] = reason
            elif node.op.kind is Kind.VIEW or not (node.inputs or symbols_in((node.spec, *node.attrs.values()))):
                self.free.add(node)

    def base(self, value: Node) -> Node:
        """The value that views of it, made by whoever reads them, start from."""
        while value in self.free and value.inputs:
            value = value.inputs[0]
        return value

    def measure(self) -> None:
        """The depth of every node. A size that a node reads is a path from the node that determines it."""
        self.depth = {}
        makers: dict[Symbol, Node] = {}
        known = symbols_in(tuple([node.spec for node in self.graph.inputs]))
        last_in_order: list[Node] = []
        for node in self.graph.nodes:
            if node in self.free:
                continue
            symbols = symbols_in((node.spec, *node.attrs.values())) - known
            before = [base for value in node.inputs if (base := self.base(value)) in self.depth]
            before += [makers[symbol] for symbol in symbols if symbol in makers]
            for symbol in symbols:
                makers.setdefault(symbol, node)
            if node not in self.refused:
                self.depth[node] = max([0, *[self.depth[value] + (value in self.refused) for value in before]])
                continue
            ordered = keeps_order(node)
            before += last_in_order if ordered else []
            self.depth[node] = max([-1, *[self.depth[value] for value in before]])
            if ordered:
                last_in_order = [node]

    def members(self) -> list[list[Node]]:
        """The taken nodes by depth."""
        found: dict[int, list[Node]] = defaultdict(list)
        for node, depth in self.depth.items():
            if node not in self.refused:
                found[depth].append(node)
        return [found[depth] for depth in sorted(found)]

    def part(self, members: Sequence[Node]) -> PartNodes:
        """The part that computes what is read of `members` outside."""
        inside = set(members)
        outputs = [node for node in members if self.leaves(node, inside)]
        needed = set(outputs)
        nodes = []
        for node in reversed(self.graph.nodes):
            if node in needed:
                nodes.append(node)
                needed.update(value for value in node.inputs if value in inside or value in self.free)
        nodes.reverse()
        read = dict.fromkeys(value for node in nodes for value in node.inputs)
        return PartNodes(tuple(nodes), tuple([value for value in read if value not in needed]), tuple(outputs))

    def leaves(self, node: Node, inside: Collection[Node]) -> bool:
        """Whether the node, or a view of it, is read outside of its part."""
        if node in self.results:
            return True
        return any(self.leaves(user, inside) if user in self.free else user not in inside for user in self.users[node])

    def is_worth(self, part: PartNodes) -> bool:
        """Whether a part computes enough for a call."""
        computing = [node for node in part.nodes if node.inputs and node.op.kind is not Kind.VIEW]
        enough = len(computing) >= self.least or any(node.op.kind is Kind.LIBRARY for node in computing)
        return enough and bool(part.inputs and part.outputs)

    def kept(self, parts: Sequence[PartNodes]) -> tuple[tuple[Node, ...], ...]:
        """What runs outside, around the parts: what is not taken, and views of what parts give."""
        given = {value for part in parts for value in part.outputs}
        wanted = {*self.graph.roots(), *[value for part in parts for value in part.inputs]} - given
        outside: set[Node] = set()
        for node in reversed(self.graph.nodes):
            if node in wanted or (node in self.refused and has_effect(node)):
                outside.add(node)
                wanted.update(value for value in node.inputs if value not in given)
        order: list[list[Node]] = [[] for _ in range(len(parts) + 1)]
        for node in self.graph.nodes:
            if node in outside:
                order[self.depth.get(self.base(node), -1) + 1].append(node)
        return tuple(map(tuple, order))
