"""Which gradients exist, where that depends on the branches that were taken.

    graph(%0: b8[] "p", %1: f32[4] "t"):
        %2 = cond(%0, %1, true=@0, false=@1, exist=((1, 2),))
        %3 = item(%2, index=0)
        %4 = item(%2, index=1)                      of a weight that only the true side uses
        %5 = item(%2, index=2)
        return %3, %4, %5                           with_existence: %4 exists if %5 is true

In eager a tensor that the side which was taken does not use has the gradient None, with which an optimizer leaves a
parameter alone. A backward is linear in its tangents: a value exists if one of those that it is computed from does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node, call_of
from kiln.graph.ir.rewrite import computed_from
from kiln.symbolic import ShapeEnv


def with_existence(graph: Graph, tangents: Sequence[Node]) -> tuple[Graph, tuple[int | None, ...]]:
    """`graph` with outputs that say which of the others exist, and for each other the number of the one that does."""
    branches = [node.attrs for node in graph.nodes if node.op.name == "cond"]
    if not any(attrs["exist"] for attrs in branches):
        return graph, (None,) * len(graph.outputs)
    builder = Builder(ShapeEnv())
    known = Existence(builder.node, graph.nodes, tangents).known
    conditions = [known.get(output.value) for output in graph.outputs]
    distinct = list(dict.fromkeys([condition for condition in conditions if condition is not None]))
    copies = [builder.node("clone", condition, strides=None) for condition in distinct]
    outputs = (*graph.outputs, *map(Output, copies))
    numbers = {condition: len(graph.outputs) + number for number, condition in enumerate(distinct)}
    found = tuple([None if condition is None else numbers[condition] for condition in conditions])
    return replace(graph, nodes=[*graph.nodes, *builder.nodes], outputs=outputs), found


@final
class Existence:
    """Computes for each value of a backward when it exists; `known` has those for which that varies."""

    def __init__(self, make: Callable[..., Node], nodes: Sequence[Node], tangents: Sequence[Node]) -> None:
        self.make = make
        self.known: dict[Node, Node] = {}
        self.truths: dict[tuple[Node, int], Node] = {}
        linear = computed_from(nodes, tangents)
        for node in nodes:
            if node in linear:
                self.visit(node, [value for value in node.inputs if value in linear])

    def visit(self, node: Node, sources: Sequence[Node]) -> None:
        varying = list(dict.fromkeys([self.known[value] for value in sources if value in self.known]))
        condition: Node | None = None
        if all([value in self.known for value in sources]):
            condition = varying[0]
            for other in varying[1:]:
                condition = self.make("bitwise_or", condition, other)
        made = call_of(node)
        if made is not node and made.op.name == "cond":
            condition = self.within(made, node.attrs["index"], condition)
        if condition is not None:
            self.known[node] = condition

    def within(self, made: Node, number: int, condition: Node | None) -> Node | None:
        """For a gradient of a branch whose tangents exist under `condition`."""
        told = dict(made.attrs["exist"]).get(number)
        if told is None:
            return condition
        truth = self.truths.get((made, told))
        if truth is None:
            truth = self.truths[made, told] = self.make("item", made, index=told)
        return truth if condition is None else self.make("bitwise_and", truth, condition)
