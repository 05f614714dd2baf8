"""Arithmetic operations of nodes, as formulas in the symbols of their sizes.

    addmm(bias, x: f32[s0, 64], w: f32[64, 8])      1024*s0: two operations per multiplication and addition

Other primitives count what their row of the table says, per element. Library calls without a row here count nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import nested_graphs
from kiln.graph.prims.table import Kind
from kiln.symbolic import Int, product
from kiln.tensor.spec import Spec, TensorSpec


def node_flops(node: Node) -> Int:
    if node.op.kind is Kind.NESTED:
        total: Int = 0
        for graph in nested_graphs(node):
            for inner in graph.nodes:
                total = total + node_flops(inner)
        return total
    if node.op.kind is Kind.LIBRARY:
        rule = LIBRARY_FLOPS.get(target_of(node))
        return rule(node) if rule is not None else 0
    points = node.inputs[0].spec if node.op.kind in (Kind.REDUCTION, Kind.SCAN) else node.spec
    return numel(points) * node.op.flops


def operands(node: Node) -> list[TensorSpec]:
    """The tensors that a library call takes, in order; one that it takes twice is one input of the node."""
    args, _ = node_arguments(node, node.inputs)
    return [argument.tensor for argument in args if isinstance(argument, Node)]


def target_of(node: Node) -> str:
    return str(node.attrs["target"]).removeprefix("aten.")


def numel(spec: Spec | None) -> Int:
    return product(spec.sizes) if isinstance(spec, TensorSpec) else 0


def of_product(node: Node) -> Int:
    """Each element of the result is a sum over the last dimension of the left matrix."""
    left = operands(node)[-2]
    return 2 * numel(node.spec) * left.sizes[-1]


def of_convolution(node: Node) -> Int:
    """Each element of the result is a sum over a filter; transposed, each of the input."""
    weight = operands(node)[1]
    transposed = bool(node.attrs["args"][6])
    points = node.inputs[0].spec if transposed else node.spec
    return 2 * numel(points) * product(weight.sizes[1:])


def of_dot(node: Node) -> Int:
    return 2 * numel(node.inputs[0].spec)


def of_convolution_backward(node: Node) -> Int:
    """The gradients of input and weight take as much as the convolution; that of the bias is a sum."""
    args = cast(tuple[object, ...], node.attrs["args"])
    gradient, given, weight = operands(node)[:3]
    transposed, wanted = bool(args[7]), cast(tuple[bool, ...], args[10])
    points = numel(given if transposed else gradient)
    return 2 * points * product(weight.sizes[1:]) * sum(wanted[:2]) + numel(gradient) * wanted[2]


def of_attention(node: Node) -> Int:
    """Two products per head; the softmax between them is not counted."""
    query, key, value = [each.sizes for each in operands(node)[:3]]
    return 2 * product(query[:-1]) * key[-2] * (query[-1] + value[-1])


def of_attention_backward(node: Node) -> Int:
    """Five products per head: the scores again, and for the gradients of scores, query, key and value."""
    query, key, value = [each.sizes for each in operands(node)[1:4]]
    return 2 * product(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
# fmt: off
LIBRARY_FLOPS: dict[str, Callable[[Node], Int]] = {
    "mm.default": of_product, "bmm.default": of_product, "addmm.default": of_product, "baddbmm.default": of_product,
    "mv.default": of_product, "addmv.default": of_product, "convolution.default": of_convolution,
    "convolution_backward.default": of_convolution_backward, "dot.default": of_dot, "vdot.default": of_dot,
    **{f"_scaled_dot_product_{name}.default": of_attention for name in ATTENTION},
    **{f"_scaled_dot_product_{name}_backward.default": of_attention_backward for name in ATTENTION},
}
# fmt: on
