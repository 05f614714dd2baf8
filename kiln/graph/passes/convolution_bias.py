"""Adds the bias of a convolution on a GPU, and sums its gradient, in loops that others are fused with.

    %3 = aten.convolution.default(%x, %w, %b, ...)              %3 = aten.convolution.default(%x, %w, None, ...)
    %4 = tanh(%3)                                       =>      %4 = add(%3, view(%b, sizes=(8, 1, 1)))
                                                                %5 = tanh(%4)       a kernel with the add

    %6, %7, %8 = aten.convolution_backward.default(             %6, %7, _ = aten.convolution_backward.default(
        %g, %x, %w, ..., (True, True, True))            =>          %g, %x, %w, ..., (True, True, False))
                                                                %8 = sum(%g, axes=(0, 2, 3))

cuDNN's convolutions have no bias: ATen adds it, to a rounded result as here, and sums its gradient, by further kernels.
The libraries of a CPU do both along the way. The bias stays where only library ops read the result, or where it leaves
the graph, as the sum would be another tensor to write.
"""

from __future__ import annotations

from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import rewrite, users_of
from kiln.graph.passes.align_costs import IN_LOOPS
from kiln.graph.passes.convolutions import BACKWARD, BIAS, CONVOLUTION, on_cpu, without_gradient
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.unfuse_bias import is_added_by_readers
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass


@final
@dataclass(frozen=True)
class ConvolutionBias:
    name: str = "convolution-bias"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        calls = [node for node in graph.nodes if node.op.kind is Kind.LIBRARY and is_convolution_on_gpu(node)]
        if not calls:
            return graph, 0
        users = users_of(graph)
        added = {node for node in calls if has_bias(node) and is_added_by_readers(node, users, IN_LOOPS)}
        added.difference_update([base_of(root) for root in graph.roots()])
        summed = {node for node in calls if node.attrs["target"] == BACKWARD and node.attrs["args"][-1][BIAS]}
        gradients = {item for node in summed for item in users[node] if item.attrs["index"] == BIAS}
        return rewrite(graph, separated, context.oracle, only=added | summed | gradients)


def is_convolution_on_gpu(node: Node) -> bool:
    return node.attrs["target"] in (CONVOLUTION, BACKWARD) and not on_cpu(node)


def has_bias(node: Node) -> bool:
    """Whether it has one that ATen accepts: of any other, ATen raises, where a sum would be broadcast or promoted."""
    if node.attrs["target"] != CONVOLUTION or node.attrs["args"][BIAS] is None:
        return False
    bias, result = node.inputs[node.attrs["args"][BIAS].index].tensor, node.tensor
    return (bias.sizes, bias.dtype, bias.device) == ((result.sizes[1],), result.dtype, result.device)


def separated(builder: Builder, node: Node) -> Node:
    """The call without its bias, with the sum behind it; for the gradient of the bias, the sum."""
    if node.op.name == "item":
        tangent = node.inputs[0].inputs[0]
        return builder.node("sum", tangent, axes=(0, *range(2, tangent.tensor.rank)))
    if node.attrs["target"] == BACKWARD:
        return without_gradient(builder, node, BIAS)
    args, kwargs = node_arguments(node, node.inputs)
    bias = args[BIAS]
    assert isinstance(bias, Node)
    made = builder.aten(CONVOLUTION, [*args[:BIAS], None, *args[BIAS + 1 :]], kwargs, node.spec)
    sizes = (*bias.tensor.sizes, *[1] * (node.tensor.rank - 2))
    return builder.node("add", made, builder.node("view", bias, sizes=sizes))
