"""A backward for some of the tangents: the contribution of outputs that the loss does not use is left out.

    graph(%0: f32[4] "t0", %1: f32[4] "t1"):          graph(%0: f32[4] "t0"):
        %2 = mul(%0, 2)                                   %2 = mul(%0, 2)
        %3 = mul(%1, 3)                          =>       return %2                    gradient 0
        %4 = add(%2, %3)                                                               gradient 1 is undefined
        return %4, %3

As in eager, an input that only unused outputs depend on gets no gradient rather than zeros. A backward is linear in its
tangents, so values that depend on missing tangents alone are zero, and a sum with them is the other summand. Where
another op reads such a value, it becomes zeros. So does a gradient that an `autograd.Function` gets beside another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import final

from kiln.graph.autograd.partition import gradient_outputs
from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import computed_from, rewrite, with_inputs, with_nested, without_dead_code
from kiln.graph.prims.rows import PRIMS
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import TensorSpec


def without_inputs(graph: Graph, unread: Collection[int]) -> Graph:
    """`graph` without these inputs, which it does not use."""
    if not unread:
        return graph
    kept = [number for number in range(len(graph.inputs)) if number not in unread]
    position = {number: index for index, number in enumerate(kept)}
    outputs = [
        replace(output, alias=replace(output.alias, index=position[output.alias.index]))
        if output.alias and output.alias.of == "input"
        else output
        for output in graph.outputs
    ]
    return replace(graph, inputs=tuple([graph.inputs[number] for number in kept]), outputs=tuple(outputs))


def without_tangents(graph: Graph, given: Sequence[bool]) -> tuple[Graph, frozenset[int]]:
    """`graph` without missing tangents (its last inputs are the tangents, `given` says which are there).

    Also the numbers of the outputs that have become zero; `backward_for` drops them.
    """
    graph = with_nested(graph, without_joins)
    if all(given) and all(node.op.name != "materialised" for node in graph.nodes):
        return graph, frozenset()
    tangents = graph.inputs[len(graph.inputs) - len(given) :]
    present = [tangent for tangent, here in zip(tangents, given, strict=True) if here]
    missing = [tangent for tangent in tangents if tangent not in present]
    zero = computed_from(graph.nodes, tangents) - computed_from(graph.nodes, present)
    absent = frozenset(number for number, output in enumerate(graph.outputs) if output.value in zero)
    return _WithoutTangents(graph, missing, zero).graph(len(graph.inputs) - len(given)), absent


def without_joins(graph: Graph) -> Graph:
    """`graph` where no tangent is missing: a `materialised` gradient is its first input."""
    graph = with_nested(graph, without_joins)
    joins = [node for node in graph.nodes if node.op.name == "materialised"]
    return rewrite(graph, lambda builder, node: node.inputs[0], ShapeEnv(), joins)[0] if joins else graph


@final
class _WithoutTangents:
    """Builds the graph without the missing inputs."""

    def __init__(self, old: Graph, missing: Sequence[Node], zero: set[Node]) -> None:
        self.old = old
        self.zero = zero
        self.builder = Builder(ShapeEnv())
        self.new: dict[Node, Node] = {}
        for node in old.inputs:
            if node not in missing:
                self.new[node] = self.builder.input(node.attrs["name"], node.spec)
        for node in missing:
            self.new[node] = self.zeros(node.tensor)

    def graph(self, num_saved: int) -> Graph:
        for node in self.old.nodes:
            if node in self.zero:  # not computed: what only the missing tangents need may be missing too
                if isinstance(node.spec, TensorSpec):
                    self.new[node] = self.zeros(node.spec)
                continue
            made = self.new[node.inputs[0]] if node.op.name == "materialised" else self.summand(node)
            if made is None:
                made = self.builder.append(with_inputs(node, tuple([self.new[value] for value in node.inputs])))
            self.new[node] = made
        values = [self.new[output.value] for output in self.old.outputs]
        # A sum that lost a summand may be the same value as another gradient, or a tangent.
        outputs, copies = gradient_outputs(values, self.builder.inputs, num_saved)
        nodes = [*self.builder.nodes, *copies]
        graph, _ = without_dead_code(Graph(tuple(self.builder.inputs), nodes, outputs, (), self.old.name))
        return graph

    def summand(self, node: Node) -> Node | None:
        """The other summand of a sum with zero; None for other nodes, or if the sizes differ."""
        if node.op.name != "add" or node in self.zero or self.zero.isdisjoint(node.inputs):
            return None
        left, right = node.inputs
        kept = right if left in self.zero else left
        spec = node.tensor
        if (kept.tensor.dtype, kept.tensor.sizes) != (spec.dtype, spec.sizes):
            return None
        return self.relaid(self.new[kept], spec)

    def zeros(self, spec: TensorSpec) -> Node:
        number = self.builder.constant(0.0, spec.dtype, spec.device)
        made = self.builder.add(PRIMS["full"], (number,), {"sizes": spec.sizes}, spec.with_sizes(spec.sizes))
        return self.relaid(made, spec)

    def relaid(self, made: Node, spec: TensorSpec) -> Node:
        if made.tensor == spec:
            return made
        return self.builder.add(PRIMS["clone"], (made,), {"strides": spec.strides}, spec)
