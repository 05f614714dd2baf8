"""Windows of images as columns, shuffled pixels, grids: mostly ATen calls with predicted sizes.

im2col(f32[1, 3, 4, 5], [2, 2], ...)    =     f32[1, 12, 12]
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.convolution import Sizes, at, format_of, pooled
from kiln.graph.ops.creation import relaid
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import decompose, library
from kiln.graph.ops.sizes import is_empty
from kiln.graph.prims.meta import empty_sizes, format_strides, matches
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec


@library("im2col.default")
def im2col(e: Emit, x: Node, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> TensorSpec:
    spec = x.tensor
    windows: Int = 1
    reach: Int = 1
    for i in range(2):
        windows = windows * pooled(
            spec.sizes[spec.rank - 2 + i], at(kernel_size, i), at(stride, i), at(padding, i), at(dilation, i), False
        )
        reach = reach * at(kernel_size, i)
    return spec.with_sizes((*spec.sizes[:-3], spec.sizes[-3] * reach, windows))


@library("col2im.default")
def col2im(
    e: Emit, x: Node, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> TensorSpec:
    spec = x.tensor
    reach = at(kernel_size, 0) * at(kernel_size, 1)
    return spec.with_sizes((*spec.sizes[:-2], spec.sizes[-2] // reach, *output_size))


def require_image(e: Emit, op: str, x: TensorSpec, factor: int) -> None:
    if x.rank < 3:
        raise RuntimeError(
            f"{op} expects input to have at least 3 dimensions, but got input with {x.rank} dimension(s)"
        )
    if factor <= 0:
        raise RuntimeError(f"{op} expects a positive factor, but got {factor}")


def in_format_of(e: Emit, made: Node, x: TensorSpec) -> Node:
    """Eager's kernels for the CPU keep channels last; on other devices it permutes, as is done here."""
    if x.device.type != "cpu":
        return made
    return relaid(e, made, format_strides(made.tensor.sizes, format_of(e, x)))


@decompose("pixel_shuffle.default")
def pixel_shuffle(e: Emit, x: Node, upscale_factor: int) -> Node:
    spec, r = x.tensor, upscale_factor
    require_image(e, "pixel_shuffle", spec, r)
    if not matches(e.oracle, spec.sizes[-3] % (r * r), 0):
        raise RuntimeError("pixel_shuffle expects the channels to be divisible by the square of upscale_factor")
    lead, (c, h, w) = spec.sizes[:-3], spec.sizes[-3:]
    k = len(lead)
    split = e.node("reshape", x, sizes=(*lead, c // (r * r), r, r, h, w))
    order = (*range(k), k, k + 3, k + 1, k + 4, k + 2)
    made = e.node("reshape", e.node("permute", split, dims=order), sizes=(*lead, c // (r * r), h * r, w * r))
    return in_format_of(e, made, spec)


@decompose("pixel_unshuffle.default")
def pixel_unshuffle(e: Emit, x: Node, downscale_factor: int) -> Node:
    spec, r = x.tensor, downscale_factor
    require_image(e, "pixel_unshuffle", spec, r)
    if not (matches(e.oracle, spec.sizes[-2] % r, 0) and matches(e.oracle, spec.sizes[-1] % r, 0)):
        raise RuntimeError("pixel_unshuffle expects height and width to be divisible by downscale_factor")
    if is_empty(spec) or empty_sizes(e.oracle, spec.sizes):
        raise UnsupportedOp(op="aten.pixel_unshuffle.default", reason="without elements, sizes depend on its kernel")
    lead, (c, h, w) = spec.sizes[:-3], spec.sizes[-3:]
    k = len(lead)
    split = e.node("reshape", x, sizes=(*lead, c, h // r, r, w // r, r))
    order = (*range(k), k, k + 2, k + 4, k + 1, k + 3)
    made = e.node("reshape", e.node("permute", split, dims=order), sizes=(*lead, c * r * r, h // r, w // r))
    return in_format_of(e, made, spec)


# Grids.


@library("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(e: Emit, x: Node, grid: Node, *args: object) -> TensorSpec:
    return x.tensor.with_sizes((*x.tensor.sizes[:2], *grid.tensor.sizes[1:-1]))


@library("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def grid_sampler_backward(
    e: Emit, grad: Node, x: Node, grid: Node, mode: int, padding: int, align: bool, output_mask: Sequence[bool]
) -> tuple[TensorSpec | None, TensorSpec]:
    image = x.tensor.with_sizes(x.tensor.sizes) if output_mask[0] else None
    return image, grid.tensor.with_sizes(grid.tensor.sizes)


@library("unfold_backward.default")
def unfold_backward(e: Emit, grad: Node, input_sizes: Sizes, dim: int, size: Int, step: Int) -> TensorSpec:
    return grad.tensor.with_sizes(tuple(input_sizes))


@decompose("channel_shuffle.default")
def channel_shuffle(e: Emit, x: Node, groups: int) -> Node:
    sizes = x.tensor.sizes
    if len(sizes) < 3:
        raise RuntimeError(f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(sizes)}")
    if isinstance(groups, int) and groups <= 0:
        raise RuntimeError(f"Number of groups to divide channels in must be positive. Value of groups:{groups}")
    if not matches(e.oracle, sizes[1] % groups, 0):
        raise RuntimeError(f"Number of channels must be divisible by groups. Got {sizes[1]} channels, {groups} groups")
    split = e.node("reshape", x, sizes=(sizes[0], groups, sizes[1] // groups, *sizes[2:]))
    order = (0, 2, 1, *range(3, len(sizes) + 1))
    return in_format_of(e, e.node("reshape", e.node("permute", split, dims=order), sizes=sizes), x.tensor)
