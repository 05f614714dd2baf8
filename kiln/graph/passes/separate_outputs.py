"""Gives every output memory of its own, with the strides that eager gives it.

    return %0, %2, %2                   %3 = clone(%0); %4 = clone(%2)
                                =>      return %3, %2, %4

Eager returns a fresh tensor for `x * 1` and two tensors for two equal sums; after simplification both are one
value. An output that says so (`Output.alias`) shares memory on purpose and stays. A written value may be anything:
it is copied into the input anyway.
Needs: to be the last pass that replaces values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import with_inputs
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind


@final
@dataclass(frozen=True)
class SeparateOutputs:
    name: str = "separate-outputs"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        taken: set[Node] = set()
        copies: list[Node] = []
        outputs = list(graph.outputs)
        shared = {one.alias.index for one in outputs if one.alias is not None and one.alias.of == "output"}
        for index, output in enumerate(outputs):
            if output.alias is not None:
                continue
            base = base_of(output.value)
            if base in taken or is_outside(base):
                made = copied_with_base(output.value) if index in shared else [fresh_copy(output.value)]
                copies += made
                outputs[index] = replace(output, value=made[-1])
            taken.add(base)
        if not copies:
            return graph, 0
        nodes = [*graph.nodes, *copies]
        return Graph(graph.inputs, nodes, tuple(outputs), graph.writes, graph.name), len(copies)


def shared_views(graph: Graph) -> set[Node]:
    """The views on the way from memory that outputs share to the first of them: what is shared is what they view."""
    found: set[Node] = set()
    for output in graph.outputs:
        if output.alias is None or output.alias.of == "input":
            continue
        node = graph.outputs[output.alias.index].value
        while node.op.kind is Kind.VIEW:
            found.add(node)
            node = node.inputs[0]
    return found


def is_outside(node: Node) -> bool:
    """Memory that is there before the graph runs, or for longer."""
    return node.op.name in ("input", "constant_tensor")


def fresh_copy(node: Node) -> Node:
    """The same value in the same layout."""
    spec = node.tensor
    return Node(
        PRIMS["clone"], (node,), {"strides": spec.strides}, spec.with_view(spec.sizes, spec.strides, 0), node.origin
    )


def copied_with_base(node: Node) -> list[Node]:
    """A copy of the whole memory that `node` views, and the same views of it: other outputs are views of it too."""
    chain: list[Node] = []
    while node.op.kind is Kind.VIEW:
        chain.append(node)
        node = node.inputs[0]
    made = [fresh_copy(node)]
    for view in reversed(chain):
        made.append(with_inputs(view, (made[-1],)))
    return made
