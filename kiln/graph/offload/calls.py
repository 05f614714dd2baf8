"""A split graph with one call for each part.

%3: (f32[4],) = aten.kiln_offload.run.default(7, (%0, %1), (s0,))      part 7 on two tensors and a size
%4: f32[4] = item(%3, index=0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Arg, Node
from kiln.graph.ir.rewrite import rebuilt, symbols_of, with_inputs
from kiln.graph.offload.split import PartNodes, Split
from kiln.graph.prims.rows import PRIMS
from kiln.symbolic import Symbol

TARGET = "kiln_offload.run.default"
"""(number of the part, tensors, sizes) -> tensors; `runtime/offloaded.py` registers it."""

CompilePart = Callable[[Graph, tuple[Symbol, ...]], int]
"""Compiles the graph of a part; returns the number under which it runs."""


def with_calls(found: Split, compile_part: CompilePart) -> Graph:
    """The graph of `found` in which calls stand for the parts."""
    graph = found.graph
    replaced: dict[Node, Node] = {node: node for node in graph.inputs}
    nodes = moved(found.kept[0], replaced)
    for part, behind in zip(found.parts, found.kept[1:], strict=True):
        symbols = tuple(sorted(symbols_of((*part.inputs, *part.nodes)), key=str))
        number = compile_part(part_graph(part), symbols)
        nodes += call(part, number, symbols, replaced)
        nodes += moved(behind, replaced)
    return rebuilt(graph, nodes, replaced)


def part_graph(part: PartNodes) -> Graph:
    """The part as a graph of its own."""
    inputs = [
        Node(PRIMS["input"], (), {"index": number, "name": f"x{number}"}, value.spec)
        for number, value in enumerate(part.inputs)
    ]
    replaced = dict(zip(part.inputs, inputs, strict=True))
    nodes = moved(part.nodes, replaced)
    return Graph(tuple(inputs), nodes, tuple([Output(replaced[value]) for value in part.outputs]))


def moved(nodes: Iterable[Node], replaced: dict[Node, Node]) -> list[Node]:
    """`nodes` on the values that replace their inputs; what they become is added to `replaced`."""
    made = []
    for node in nodes:
        replaced[node] = with_inputs(node, tuple([replaced[value] for value in node.inputs]))
        made.append(replaced[node])
    return made


def call(part: PartNodes, number: int, symbols: tuple[Symbol, ...], replaced: dict[Node, Node]) -> list[Node]:
    """The call, and an `item` for each value that the part gives."""
    inputs = tuple([replaced[value] for value in part.inputs])
    args = (number, tuple([Arg(place) for place in range(len(inputs))]), symbols)
    spec = tuple([value.tensor for value in part.outputs])
    made = Node(PRIMS["aten"], inputs, {"target": TARGET, "args": args, "kwargs": ()}, spec)
    for place, value in enumerate(part.outputs):
        replaced[value] = Node(PRIMS["item"], (made,), {"index": place}, value.spec, value.origin)
    return [made, *[replaced[value] for value in part.outputs]]
