"""Convolutions and pooling: ATen calls with predicted sizes and memory formats.

    convolution(f32[4, 3, 224, 224], f32[64, 3, 7, 7], stride 2, padding 3)    =    f32[4, 64, 112, 112]

The result is channels-last if the input or the weight is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import SpecRule, library
from kiln.graph.ops.sizes import matching_sizes
from kiln.graph.prims.meta import MemoryFormat, format_strides, suggested_format
from kiln.symbolic import Int, ceil_div, rel_le, sym_min
from kiln.tensor.spec import TensorSpec

T = TypeVar("T")
INT_MAX = torch.iinfo(torch.int32).max
Sizes = Sequence[Int]


def at(values: Sequence[T], dim: int) -> T:
    """The value for a dimension, where a single one may stand for all."""
    return values[dim] if len(values) > 1 else values[0]


def format_of(e: Emit, *specs: TensorSpec) -> MemoryFormat:
    """Channels-last if any of the tensors suggests it."""
    for spec in specs:
        layout = suggested_format(e.oracle, spec.sizes, spec.strides)
        if layout != "contiguous":
            return layout
    return "contiguous"


def laid_out(
    x: TensorSpec, sizes: tuple[Int, ...], layout: MemoryFormat, dtype: torch.dtype | None = None
) -> TensorSpec:
    return TensorSpec(dtype or x.dtype, sizes, format_strides(sizes, layout), 0, x.device)


@library("convolution.default")
def convolution(
    e: Emit, x: Node, weight: Node, bias: Node | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int,
) -> TensorSpec:  # fmt: skip
    image, kernel = x.tensor, weight.tensor
    if image.dtype is not kernel.dtype:
        raise RuntimeError(f"Input type ({image.dtype}) and weight type ({kernel.dtype}) should be the same")
    _check_channels(e, image, kernel, transposed, groups)
    pixels: list[Int] = []
    for dim, (size, reach) in enumerate(zip(image.sizes[2:], kernel.sizes[2:], strict=True)):
        step, border, spacing = at(stride, dim), at(padding, dim), at(dilation, dim)
        extent = spacing * (reach - 1)
        if transposed:
            pixels.append((size - 1) * step - 2 * border + extent + at(output_padding, dim) + 1)
        else:
            pixels.append((size + 2 * border - extent - 1) // step + 1)
        if not e.oracle.expect(rel_le(1, size if transposed else size + 2 * border - extent)):
            raise RuntimeError(
                f"Given input size {list(image.sizes[2:])} and kernel size {list(kernel.sizes[2:])}: the kernel size"
                " can't be greater than the actual input size"
            )
    channels = kernel.sizes[1] * groups if transposed else kernel.sizes[0]
    sizes = (image.sizes[0], channels, *pixels)
    return laid_out(image, sizes, format_of(e, image, kernel))


def _check_channels(e: Emit, image: TensorSpec, kernel: TensorSpec, transposed: bool, groups: int) -> None:
    have = image.sizes[1]
    want = kernel.sizes[0] if transposed else kernel.sizes[1] * groups
    if not matching_sizes(e, (have,), (want,)):
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(kernel.sizes)}, expected input{list(image.sizes)} to have"
            f" {want} channels, but got {have} channels instead"
        )


@library("convolution_backward.default")
def convolution_backward(
    e: Emit, grad: Node, x: Node, weight: Node, bias_sizes: Sizes | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int, output_mask: Sequence[bool],
) -> tuple[TensorSpec | None, ...]:  # fmt: skip
    image, kernel = x.tensor, weight.tensor
    layout = format_of(e, image, kernel)
    return (
        laid_out(image, image.sizes, layout) if output_mask[0] else None,
        laid_out(kernel, kernel.sizes, layout) if output_mask[1] else None,
        image.with_sizes((grad.tensor.sizes[1],)) if output_mask[2] else None,
    )


# Pooling.


def pooled(size: Int, kernel: Int, step: Int, border: Int, spacing: Int, ceil_mode: bool) -> Int:
    """Windows along a dimension; with `ceil_mode` the last may extend beyond the padding if it starts before it."""
    room = size + 2 * border - spacing * (kernel - 1) - 1
    if not ceil_mode:
        return room // step + 1
    return sym_min(ceil_div(room, step) + 1, (size + border - 1) // step + 1)


def _pool_sizes(
    e: Emit, x: TensorSpec, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool, dims: int
) -> tuple[Int, ...]:
    steps, sizes = stride or kernel, list(x.sizes)
    if x.rank not in (dims + 1, dims + 2):
        raise RuntimeError(f"Expected {dims + 1}D or {dims + 2}D (batch mode) tensor for input, but got: {x.sizes}")
    if not e.oracle.expect(rel_le(1, x.sizes[-dims - 1])):  # the channels
        kinds = f"{dims + 1}D or {dims + 2}D (batch mode) tensor with optional 0 dim batch size"
        raise RuntimeError(f"Expected {kinds} for input, but got: {x.sizes}")
    for numbers in (kernel, steps, padding, dilation):
        if len(numbers) not in (1, dims):
            raise RuntimeError(f"pooling: an argument must either be a single int, or a tuple of {dims} ints")
        if any(isinstance(number, int) and number > INT_MAX for number in numbers):
            raise RuntimeError("value cannot be converted to type int without overflow")
    for i in range(dims):
        axis = x.rank - dims + i
        sizes[axis] = pooled(sizes[axis], at(kernel, i), at(steps, i), at(padding, i), at(dilation, i), ceil_mode)
        if not e.oracle.expect(rel_le(1, sizes[axis])):
            raise RuntimeError(f"Given input size: {x.sizes[-dims:]}. Output size is too small")
    return tuple(sizes)


def _max_pool(dims: int) -> SpecRule:
    def rule(
        e: Emit, x: Node, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,), dilation: Sizes = (1,),
        ceil_mode: bool = False,
    ) -> tuple[TensorSpec, TensorSpec]:  # fmt: skip
        spec, layout = x.tensor, format_of(e, x.tensor)
        sizes = _pool_sizes(e, spec, kernel_size, stride, padding, dilation, ceil_mode, dims)
        return laid_out(spec, sizes, layout), laid_out(spec, sizes, layout, torch.int64)

    return rule


@library(
    "max_pool2d_with_indices_backward.default", "avg_pool2d_backward.default", "avg_pool3d_backward.default",
    "max_pool3d_with_indices_backward.default", "adaptive_max_pool3d_backward.default",
    "adaptive_max_pool2d_backward.default",
)  # fmt: skip
def input_gradient(e: Emit, grad: Node, x: Node, *args: object, **kwargs: object) -> TensorSpec:
    """In the memory format of the input."""
    spec = x.tensor
    return laid_out(spec, spec.sizes, format_of(e, spec))


def _avg_pool(dims: int) -> SpecRule:
    def rule(
        e: Emit, x: Node, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = (0,), ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> TensorSpec:  # fmt: skip
        spec = x.tensor
        sizes = _pool_sizes(e, spec, kernel_size, stride, padding, (1,), ceil_mode, dims)
        return laid_out(spec, sizes, format_of(e, spec))

    return rule


for _dims in (2, 3):
    library(f"max_pool{_dims}d_with_indices.default")(_max_pool(_dims))
    library(f"avg_pool{_dims}d.default")(_avg_pool(_dims))


@library("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(e: Emit, x: Node, output_size: Sizes) -> tuple[TensorSpec, TensorSpec]:
    spec = x.tensor
    sizes, layout = (*spec.sizes[: -len(output_size)], *output_size), format_of(e, spec)
    return laid_out(spec, sizes, layout), laid_out(spec, sizes, layout, torch.int64)
