"""Padding that repeats the image: reflected, or the nearest element of its edge.

    reflection_pad1d(x: f32[1, 2, 5], [2, 1])       x[..., [2, 1, 0, 1, 2, 3, 4, 3]]
    replication_pad1d(x: f32[1, 2, 5], [2, 1])      x[..., [0, 0, 0, 1, 2, 3, 4, 4]]

On a GPU the image is read at computed places, which fuses with what reads the result; the gradient of a reflection adds
the parts that are reflected, without the atomic additions of eager's kernel. On a CPU, and for what eager refuses, it
is an ATen call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops.convolution import Sizes, format_of, input_gradient, laid_out
from kiln.graph.ops.creation import iota, relaid
from kiln.graph.ops.data_movement import padded
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.interpolation import inside
from kiln.graph.ops.promotion import OPMATH
from kiln.graph.ops.registry import DECOMPOSITIONS, Decomposition, library
from kiln.graph.ops.sizes import has_no_elements
from kiln.graph.prims.meta import less
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec

Places = Callable[[Emit, Node, Int], Node]
"""Where the elements of the result lie in a dimension of this size, from their distance to its first element."""


def padded_spec(e: Emit, spec: TensorSpec, padding: Sizes) -> TensorSpec:
    sizes = list(spec.sizes)
    for axis, (low, high) in each_dimension(spec.rank, padding):
        sizes[axis] = sizes[axis] + low + high
    return laid_out(spec, tuple(sizes), format_of(e, spec))


def each_dimension(rank: int, padding: Sizes) -> list[tuple[int, tuple[Int, Int]]]:
    """Each padded dimension, the last first, with the padding at its begin and end."""
    return [(rank - 1 - i, (padding[2 * i], padding[2 * i + 1])) for i in range(len(padding) // 2)]


def reflected(e: Emit, at: Node, size: Int) -> Node:
    last = e.number(size - 1, torch.int64, at.tensor.device)
    return inside(
        e, e.pointwise("sub", last, e.pointwise("abs", e.pointwise("sub", last, e.pointwise("abs", at)))), size
    )


def is_read_at_places(e: Emit, spec: TensorSpec, padding: Sizes, is_reflection: bool) -> bool:
    """Whether the image is on a GPU and has elements, and its padding is neither negative nor refused by eager."""
    batched = spec.rank - len(padding) // 2
    if spec.device.type == "cpu" or spec.dtype.is_complex or batched not in (1, 2) or has_no_elements(e, spec):
        return False
    if not all(less(e.oracle, -1, amount) for amount in padding):
        return False
    return not is_reflection or all(
        less(e.oracle, amount, spec.sizes[axis])
        for axis, amounts in each_dimension(spec.rank, padding)
        for amount in amounts
    )


def _padding(name: str, places: Places) -> Decomposition:
    def rule(e: Emit, x: Node, padding: Sizes) -> Node:
        spec, made = x.tensor, padded_spec(e, x.tensor, padding)
        if not is_read_at_places(e, spec, padding, places is reflected):
            return e.library(name, cast(Sequence[Argument], (x, list(padding))), {}, made)
        return relaid(e, read_at_places(e, x, padding, places), made.strides)

    return rule


def read_at_places(e: Emit, x: Node, padding: Sizes, places: Places) -> Node:
    for axis, (low, high) in each_dimension(x.tensor.rank, padding):
        if low == high == 0:
            continue
        size = x.tensor.sizes[axis]
        at = iota(e, size + low + high, torch.int64, x.tensor.device, start=-low)
        x = e.node("index", x, places(e, at, size), axes=(axis,))
    return x


def _reflection_backward(name: str) -> Decomposition:
    def rule(e: Emit, grad: Node, x: Node, padding: Sizes) -> Node:
        spec, made = x.tensor, input_gradient(e, grad, x)
        if not is_read_at_places(e, spec, padding, True):
            return e.library(name, cast(Sequence[Argument], (grad, x, list(padding))), {}, made)
        return relaid(e, reflection_gradient(e, grad, spec, padding), made.strides)

    return rule


def reflection_gradient(e: Emit, grad: Node, spec: TensorSpec, padding: Sizes) -> Node:
    """The gradient of an image of `spec`, added up in the dtype in which eager computes."""
    total = e.convert(grad, OPMATH.get(spec.dtype, spec.dtype))
    for axis, amounts in each_dimension(spec.rank, padding):
        total = folded(e, total, axis, spec.sizes[axis], *amounts)
    return e.convert(total, spec.dtype)


def folded(e: Emit, grad: Node, axis: int, size: Int, low: Int, high: Int) -> Node:
    """The sum, for each element of a dimension of `size`, of the gradients of itself and its reflections."""
    total = e.node("slice", grad, axis=axis, start=low, stop=low + size, step=1)
    for amount, start, before in ((low, 0, 1), (high, low + size, size - 1 - high)):
        if isinstance(amount, int) and amount == 0:
            continue
        part = e.node("slice", grad, axis=axis, start=start, stop=start + amount, step=1)
        lows = tuple([before if other == axis else 0 for other in range(grad.tensor.rank)])
        highs = tuple([size - before - amount if other == axis else 0 for other in range(grad.tensor.rank)])
        total = e.pointwise("add", total, padded(e, e.node("flip", part, axes=(axis,)), lows, highs))
    return total


library(*[f"replication_pad{rank}d_backward.default" for rank in (1, 2, 3)])(input_gradient)

for _rank in (1, 2, 3):
    for _kind, _places in (("reflection", reflected), ("replication", inside)):
        _name = f"{_kind}_pad{_rank}d"
        DECOMPOSITIONS[f"{_name}.default"] = _padding(f"aten.{_name}.default", _places)
    _name = f"reflection_pad{_rank}d_backward.default"
    DECOMPOSITIONS[_name] = _reflection_backward(f"aten.{_name}")
