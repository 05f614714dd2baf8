"""A backward for some tangents only: what a result that the loss does not use would add is left out.

    graph(%0: f32[4] "t0", %1: f32[4] "t1"):          graph(%0: f32[4] "t0"):
        %2 = mul(%0, 2)                                   %2 = mul(%0, 2)
        %3 = mul(%1, 3)                          =>       return %2                    gradient 0
        %4 = add(%2, %3)                                                               gradient 1 is absent
        return %4, %3

As in eager: an input that only missing results depend on gets no gradient, rather than zeros. A backward is linear in
its tangents, so whatever depends on missing ones alone is zero, and a sum with it is the other summand. Where such a
value goes into anything but a sum, its tangents become zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from kiln.graph.autograd.partition import gradient_outputs
from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import computed_from, with_inputs, without_dead_code
from kiln.graph.prims.rows import PRIMS
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import ScalarSpec, TensorSpec


def without_tangents(graph: Graph, given: Sequence[bool]) -> tuple[Graph, frozenset[int]]:
    """`graph` without the inputs of missing tangents (its last inputs, one per entry of `given`), and the numbers of
    the outputs that have become zero; these stay in it, for `backward_for` to drop."""
    if all(given):
        return graph, frozenset()
    tangents = graph.inputs[len(graph.inputs) - len(given) :]
    present = [tangent for tangent, here in zip(tangents, given, strict=True) if here]
    missing = [tangent for tangent in tangents if tangent not in present]
    zero = computed_from(graph.nodes, tangents) - computed_from(graph.nodes, present)
    absent = frozenset(number for number, output in enumerate(graph.outputs) if output.value in zero)
    return _Cut(graph, missing, zero).graph(len(graph.inputs) - len(given)), absent


@final
class _Cut:
    """Builds the graph without the missing inputs."""

    def __init__(self, old: Graph, missing: Sequence[Node], zero: set[Node]) -> None:
        self.old = old
        self.zero = zero
        self.made = Builder(ShapeEnv())
        self.place: dict[Node, Node] = {}
        for one in old.inputs:
            if one not in missing:
                assert isinstance(one.spec, TensorSpec | ScalarSpec)
                self.place[one] = self.made.input(one.attrs["name"], one.spec)
        for one in missing:
            self.place[one] = self.zeros(one.tensor)

    def graph(self, num_saved: int) -> Graph:
        for node in self.old.nodes:
            made = self.summand(node)
            if made is None:
                made = self.made.append(with_inputs(node, tuple([self.place[one] for one in node.inputs])))
            self.place[node] = made
        values = [self.place[output.value] for output in self.old.outputs]
        # A sum that lost a summand may be the same value as another gradient, or a tangent.
        outputs, copies = gradient_outputs(values, self.made.inputs, num_saved)
        nodes = [*self.made.nodes, *copies]
        graph, _ = without_dead_code(Graph(tuple(self.made.inputs), nodes, outputs, (), self.old.name))
        return graph

    def summand(self, node: Node) -> Node | None:
        """What is left of a sum with zero; None where it is none, or has other sizes than what is left."""
        if node.op.name != "add" or node in self.zero or self.zero.isdisjoint(node.inputs):
            return None
        left, right = node.inputs
        kept = right if left in self.zero else left
        spec = node.tensor
        if (kept.tensor.dtype, kept.tensor.sizes) != (spec.dtype, spec.sizes):
            return None
        made = self.place[kept]
        return made if made.tensor == spec else self.made.add(PRIMS["clone"], (made,), {"strides": spec.strides}, spec)

    def zeros(self, spec: TensorSpec) -> Node:
        number = self.made.constant(0.0, spec.dtype, spec.device)
        made = self.made.add(PRIMS["full"], (number,), {"sizes": spec.sizes}, spec.with_sizes(spec.sizes))
        return made if made.tensor == spec else self.made.add(PRIMS["clone"], (made,), {"strides": spec.strides}, spec)
