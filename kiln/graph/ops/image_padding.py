"""Padding that repeats the image: reflected, or the nearest element of its edge.

    reflection_pad1d(x: f32[1, 2, 5], [2, 1])       x[..., [2, 1, 0, 1, 2, 3, 4, 3]]
    replication_pad1d(x: f32[1, 2, 5], [2, 1])      x[..., [0, 0, 0, 1, 2, 3, 4, 4]]

On a GPU the image is read at computed places, which fuses with what reads the result. On a CPU, where vectors would be
put together, the pieces of one padded dimension are put side by side; of several it is an ATen call, as is what eager
refuses. The gradient of a reflection adds the parts that are reflected, without the atomic additions of eager's kernel.
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
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""What eager's kernels take: these on a CPU only, and complex numbers, which are left to it."""
Pieces = Callable[[Emit, Node, int, Int, bool], Node]
"""What so many elements in front of a dimension are, or behind it."""


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


def is_covered(e: Emit, spec: TensorSpec, count: int, padding: Sizes, is_reflection: bool) -> bool:
    """Whether an image of `count` dimensions has elements and a dtype of eager's kernels, and its padding is neither
    negative nor refused by eager; on a CPU, whether only one dimension is padded."""
    dtypes = (*FLOATS, *INTEGERS) if spec.device.type == "cpu" else FLOATS
    if spec.dtype not in dtypes or spec.rank - count not in (1, 2) or len(padding) != 2 * count:
        return False
    dims = padded_dimensions(spec.rank, padding)
    if spec.device.type == "cpu" and len(dims) != 1:
        return False
    if has_no_elements(e, spec) or not all(less(e.oracle, -1, amount) for amount in padding):
        return False
    return not is_reflection or all(
        less(e.oracle, amount, spec.sizes[axis]) for axis, amounts in dims for amount in amounts
    )


def padded_dimensions(rank: int, padding: Sizes) -> list[tuple[int, tuple[Int, Int]]]:
    return [(axis, amounts) for axis, amounts in each_dimension(rank, padding) if amounts != (0, 0)]


def _padding(name: str, count: int, places: Places, pieces: Pieces) -> Decomposition:
    def rule(e: Emit, x: Node, padding: Sizes) -> Node:
        spec, made = x.tensor, padded_spec(e, x.tensor, padding)
        if not is_covered(e, spec, count, padding, places is reflected):
            return e.library(name, cast(Sequence[Argument], (x, list(padding))), {}, made)
        on_cpu = spec.device.type == "cpu"
        padded = side_by_side(e, x, padding, pieces) if on_cpu else read_at_places(e, x, padding, places)
        return relaid(e, padded, made.strides)

    return rule


def side_by_side(e: Emit, x: Node, padding: Sizes, pieces: Pieces) -> Node:
    """The image between its pieces, along the dimensions that are padded."""
    for axis, (low, high) in padded_dimensions(x.tensor.rank, padding):
        before = [] if low == 0 else [pieces(e, x, axis, low, False)]
        behind = [] if high == 0 else [pieces(e, x, axis, high, True)]
        x = e.node("cat", *before, x, *behind, axis=axis)
    return x


def reflected_piece(e: Emit, x: Node, axis: int, amount: Int, at_end: bool) -> Node:
    start = x.tensor.sizes[axis] - 1 - amount if at_end else 1
    part = e.node("slice", x, axis=axis, start=start, stop=start + amount, step=1)
    return e.node("flip", part, axes=(axis,))


def repeated_piece(e: Emit, x: Node, axis: int, amount: Int, at_end: bool) -> Node:
    start, sizes = x.tensor.sizes[axis] - 1 if at_end else 0, list(x.tensor.sizes)
    sizes[axis] = amount
    return e.node("expand", e.node("slice", x, axis=axis, start=start, stop=start + 1, step=1), sizes=tuple(sizes))


def read_at_places(e: Emit, x: Node, padding: Sizes, places: Places) -> Node:
    for axis, (low, high) in padded_dimensions(x.tensor.rank, padding):
        size = x.tensor.sizes[axis]
        at = iota(e, size + low + high, torch.int64, x.tensor.device, start=-low)
        x = e.node("index", x, places(e, at, size), axes=(axis,))
    return x


def _reflection_backward(name: str, count: int) -> Decomposition:
    def rule(e: Emit, grad: Node, x: Node, padding: Sizes) -> Node:
        spec, made = x.tensor, input_gradient(e, grad, x)
        if not is_covered(e, spec, count, padding, True):
            return e.library(name, cast(Sequence[Argument], (grad, x, list(padding))), {}, made)
        return relaid(e, reflection_gradient(e, grad, spec, padding), made.strides)

    return rule


def reflection_gradient(e: Emit, grad: Node, spec: TensorSpec, padding: Sizes) -> Node:
    """The gradient of an image of `spec`, added up in the dtype in which eager computes."""
    total = e.convert(grad, OPMATH.get(spec.dtype, spec.dtype))
    for axis, amounts in padded_dimensions(spec.rank, padding):
        total = folded(e, total, axis, spec.sizes[axis], *amounts)
    return e.convert(total, spec.dtype)


def folded(e: Emit, grad: Node, axis: int, size: Int, low: Int, high: Int) -> Node:
    """The sum, for each element of a dimension of `size`, of the gradients of itself and its reflections."""
    total = e.node("slice", grad, axis=axis, start=low, stop=low + size, step=1)
    for amount, start, before in ((low, 0, 1), (high, low + size, size - 1 - high)):
        if amount == 0:
            continue
        part = e.node("slice", grad, axis=axis, start=start, stop=start + amount, step=1)
        lows = tuple([before if other == axis else 0 for other in range(grad.tensor.rank)])
        highs = tuple([size - before - amount if other == axis else 0 for other in range(grad.tensor.rank)])
        total = e.pointwise("add", total, padded(e, e.node("flip", part, axes=(axis,)), lows, highs))
    return total


library(*[f"replication_pad{rank}d_backward.default" for rank in (1, 2, 3)])(input_gradient)

KINDS: dict[str, tuple[Places, Pieces]] = {
    "reflection": (reflected, reflected_piece), "replication": (inside, repeated_piece),
}  # fmt: skip

for _rank in (1, 2, 3):
    for _kind, _forms in KINDS.items():
        _name = f"{_kind}_pad{_rank}d"
        DECOMPOSITIONS[f"{_name}.default"] = _padding(f"aten.{_name}.default", _rank, *_forms)
    _name = f"reflection_pad{_rank}d_backward.default"
    DECOMPOSITIONS[_name] = _reflection_backward(f"aten.{_name}", _rank)
