"""Weights as a direction and a length for each index of one dimension, and their gradients.

    aten._weight_norm_interface(v: f32[4, 3], g: f32[4, 1], 0)
        =>   n = sqrt(sum(v*v, keepdim));  (v * (g/n), n)

For reduced precision, lengths are in float32.
"""

from __future__ import annotations

from kiln.graph.ir.node import Node
from kiln.graph.ops.creation import relaid
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.norms import contiguous, wide
from kiln.graph.ops.reductions import reduce
from kiln.graph.ops.registry import decompose
from kiln.graph.prims.meta import matches
from kiln.tensor.spec import TensorSpec


def other_axes(e: Emit, v: TensorSpec, g: TensorSpec, dim: int) -> tuple[int, ...]:
    """All but `dim`; refuses what eager does: dimensions in the middle, lengths of other sizes or another dtype."""
    if dim not in (0, v.rank - 1):
        raise RuntimeError("fused kernels can only be applied for first or last dim")
    axes = tuple([axis for axis in range(v.rank) if axis != dim])
    if g.dtype is not v.dtype:
        raise RuntimeError(f"expected scalar type {v.dtype} but found {g.dtype}")
    wanted = [v.sizes[axis] if axis == dim else 1 for axis in range(v.rank)]
    if g.rank != v.rank or not all(map(matches, [e.oracle] * v.rank, g.sizes, wanted)):
        raise RuntimeError(f"expected lengths of sizes {wanted} for dimension {dim}, but got {list(g.sizes)}")
    return axes


@decompose("_weight_norm_interface.default")
def weight_norm(e: Emit, v: Node, g: Node, dim: int = 0) -> tuple[Node, Node]:
    axes, v_wide = other_axes(e, v.tensor, g.tensor, dim), wide(e, v)
    length = e.pointwise("sqrt", reduce(e, "sum", e.pointwise("mul", v_wide, v_wide), axes, True))
    made = e.pointwise("mul", v_wide, e.pointwise("div", wide(e, g), length))
    return contiguous(e, made, v.tensor.dtype), relaid(e, length, g.tensor.strides)


@decompose("_weight_norm_interface_backward.default")
def weight_norm_backward(e: Emit, grad: Node, v: Node, g: Node, length: Node, dim: int) -> tuple[Node, Node]:
    """With the gradient along `v` taken away, which would not change the weight."""
    axes, p, dtype = other_axes(e, v.tensor, g.tensor, dim), e.pointwise, v.tensor.dtype
    grad, v_wide, length = wide(e, grad), wide(e, v), wide(e, length)
    along = p("div", reduce(e, "sum", p("mul", grad, v_wide), axes, True), length)
    across = p("sub", grad, p("mul", v_wide, p("div", along, length)))
    d_v = contiguous(e, p("mul", across, p("div", wide(e, g), length)), dtype)
    return d_v, relaid(e, e.convert(along, dtype), g.tensor.strides)
