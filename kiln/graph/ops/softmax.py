"""Softmax, its logarithm, and their gradients.

aten._softmax(x, -1, False)   =>   m = amax(x);  e = exp(x - m);  e / sum(e)
"""

from __future__ import annotations

import math

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.creation import packed
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.norms import wide
from kiln.graph.ops.reductions import reduce
from kiln.graph.ops.registry import decompose
from kiln.graph.ops.sizes import axes_of


def _exponentials(e: Emit, x: Node, axes: tuple[int, ...]) -> tuple[Node, Node]:
    """`x` minus its largest element, and the sum of its exponentials."""
    if 0 in x.tensor.sizes:
        return x, x  # an empty row has no maximum
    below = e.pointwise("sub", x, reduce(e, "amax", x, axes, True))
    return below, reduce(e, "sum", e.pointwise("exp", below), axes, True)


@decompose("_softmax.default")
def softmax(e: Emit, x: Node, dim: int, half_to_float: bool) -> Node:
    dtype, axes = x.tensor.dtype, axes_of(dim, x.tensor.rank)
    below, total = _exponentials(e, wide(e, x), axes)
    made = e.pointwise("div", e.pointwise("exp", below), total)
    return packed(e, made if half_to_float else e.convert(made, dtype))


@decompose("_safe_softmax.default")
def safe_softmax(e: Emit, x: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    """Zero for rows of minus infinity."""
    axes = axes_of(dim, x.tensor.rank)
    source = e.convert(x, dtype or x.tensor.dtype)
    masked = reduce(e, "all", e.pointwise("eq", source, -math.inf), axes, True)
    made = softmax(e, source, dim, False)
    zero = e.number(0, made.tensor.dtype, made.tensor.device)
    return packed(e, e.pointwise("where", masked, zero, made))


@decompose("_log_softmax.default")
def log_softmax(e: Emit, x: Node, dim: int, half_to_float: bool) -> Node:
    dtype, axes = x.tensor.dtype, axes_of(dim, x.tensor.rank)
    below, total = _exponentials(e, wide(e, x), axes)
    made = e.pointwise("sub", below, e.pointwise("log", total))
    return packed(e, made if half_to_float else e.convert(made, dtype))


@decompose("_softmax_backward_data.default")
def softmax_backward(e: Emit, grad: Node, y: Node, dim: int, input_dtype: torch.dtype) -> Node:
    p, axes = e.pointwise, axes_of(dim, y.tensor.rank)
    given, out = wide(e, grad), wide(e, y)
    scaled = p("mul", given, out)
    total = reduce(e, "sum", scaled, axes, True)
    return packed(e, e.convert(p("sub", scaled, p("mul", out, total)), input_dtype))


@decompose("_log_softmax_backward_data.default")
def log_softmax_backward(e: Emit, grad: Node, y: Node, dim: int, input_dtype: torch.dtype) -> Node:
    p, axes = e.pointwise, axes_of(dim, y.tensor.rank)
    given, out = wide(e, grad), wide(e, y)
    total = reduce(e, "sum", given, axes, True)
    return packed(e, e.convert(p("sub", given, p("mul", p("exp", out), total)), input_dtype))
