"""Gives every output its own memory, as in eager.

    return %0, %2, %2                   %3 = clone(%0); %4 = clone(%2)
                                =>      return %3, %2, %4

Eager returns a fresh tensor for `x * 1`, and two tensors for two equal sums; simplification makes each a single value.
An alias (`Output.alias`) shares memory on purpose. Written values are copied into the input anyway.
Needs: to be the last pass that replaces values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import with_inputs
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.graph.trace.storage_view import reaches_outside
from kiln.support.records import dataclass


@final
@dataclass(frozen=True)
class SeparateOutputs:
    name: str = "separate-outputs"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        taken: set[Node] = set()
        copies: list[Node] = []
        outputs = list(graph.outputs)
        shared = {output.alias.index for output in outputs if output.alias and output.alias.of == "output"}
        for index, output in enumerate(outputs):
            if output.alias is not None:
                continue
            base = base_of(output.value)
            if base in taken or base.op.name in ("input", "constant_tensor"):  # memory that outlives the graph
                made = copied_with_base(output.value) if index in shared else [fresh_copy(output.value)]
                copies += made
                outputs[index] = replace(output, value=made[-1])
            taken.add(base)
        if not copies:
            return graph, 0
        return replace(graph, nodes=[*graph.nodes, *copies], outputs=tuple(outputs)), len(copies)


def shared_views(graph: Graph) -> set[Node]:
    """The views from memory that outputs share to the first of these outputs."""
    found: set[Node] = set()
    for output in graph.outputs:
        if output.alias is None or output.alias.of == "input":
            continue
        node = graph.outputs[output.alias.index].value
        while node.op.kind is Kind.VIEW:
            found.add(node)
            node = node.inputs[0]
    return found


def fresh_copy(node: Node) -> Node:
    """The same value in the same layout."""
    spec = replace(node.tensor, offset=0)
    return Node(PRIMS["clone"], (node,), {"strides": spec.strides}, spec, node.origin)


def leaves_its_base(node: Node) -> bool:
    """Whether a view shows elements that a copy of its base would not have."""
    return node.op.name == "as_strided" and reaches_outside(node.attrs, node.inputs[0].tensor)


def copied_with_base(node: Node) -> list[Node]:
    """A copy of the base of `node` and the same views of it, as other outputs are views of the base too."""
    chain: list[Node] = []
    while node.op.kind is Kind.VIEW and not leaves_its_base(node):
        chain.append(node)
        node = node.inputs[0]
    made = [fresh_copy(node)]
    for view in reversed(chain):
        made.append(with_inputs(view, (made[-1],)))
    return made
