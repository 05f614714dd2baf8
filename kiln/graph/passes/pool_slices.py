"""Computes pools with small windows as maxima or sums of slices, loops that fuse with their neighbours.

    %1: (f32[8, 4, 4], i64[8, 4, 4]) = aten.max_pool2d_with_indices.default(%0, (1, 2), (1, 2))
    %2: f32[8, 4, 4] = item(%1, index=0)
                                =>
    %3: f32[8, 4, 4 | 32, 8, 2] = slice(%0, axis=2, start=0, stop=7, step=2)      for each place of a window
    %4: f32[8, 4, 4 | 32, 8, 2 at 1] = slice(%0, axis=2, start=1, stop=8, step=2)
    %7: f32[8, 4, 4] = where(%4 > %3 or %4 is NaN, %4, %3)

On a CPU, ATen takes windows one by one where channels are not the last dimension in memory, and computes indices of
maxima that nobody reads. On a GPU only averages of few elements are taken apart: its maxima are fast. Values and
indices are equal to ATen's, and the order of sums is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as combinations
from math import inf, prod
from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node, call_of
from kiln.graph.ir.rewrite import live_where, rewrite
from kiln.graph.ops.convolution import at, pooled
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Int, product, rel_le
from kiln.tensor.spec import SizeOracle, TensorSpec

MAXIMA = {f"aten.max_pool{dims}d_with_indices.default": dims for dims in (2, 3)}
AVERAGES = {f"aten.avg_pool{dims}d.default": dims for dims in (2, 3)}
"""Target -> dimensions of a window."""
MOST_PLACES = {"cpu": 27, "cuda": 9}
"""In a window, by device: each is a load, and some nodes of the graph."""
WIDE = (torch.float32, torch.float64)
NARROW = (torch.bfloat16, torch.float16)
"""ATen has no averages of volumes of these."""


@final
@dataclass(frozen=True)
class PoolSlices:
    name: str = "pool-slices"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        made: dict[Node, tuple[Node, ...]] = {}

        def sliced(builder: Builder, node: Node) -> Node | None:
            pool = call_of(node)
            if pool not in made:
                axes, divisor = window_of(pool, context.oracle)
                if not axes:
                    return None
                one, strides = pool is node, node.tensor.strides
                made[pool] = (average(builder, pool, axes, divisor),) if one else maxima(builder, pool, axes, strides)
            part = made[pool][node.attrs.get("index", 0)]
            if part.tensor.sizes != node.tensor.sizes:
                return None
            strides = node.tensor.strides
            return part if part.tensor.strides == strides else builder.node("clone", part, strides=strides)

        return rewrite(graph, sliced, context.oracle, only=live_where(graph, is_pooled))


def is_pooled(node: Node) -> bool:
    """Whether it is a result of a pool of floats on a CPU, or an average on a GPU."""
    pool = call_of(node)
    if pool.op.kind is not Kind.LIBRARY or pool.attrs["target"] not in (AVERAGES if pool is node else MAXIMA):
        return False
    image, narrow = pool.inputs[0].tensor, pool.attrs["target"] != "aten.avg_pool3d.default"
    device = image.device.type == "cpu" or (pool is node and image.device.type in MOST_PLACES)
    return device and (image.dtype in WIDE or (narrow and image.dtype in NARROW))


# Windows.


@final
@dataclass(frozen=True)
class PoolOptions:
    """Arguments of a pool; the divisor of an average where it is not the number of places, and what that counts."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    ceil_mode: bool
    border_counts: bool
    divisor: int | None


def maximum_options(
    x: Node, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> PoolOptions:  # fmt: skip
    return PoolOptions(kernel_size, stride, padding, dilation, ceil_mode, True, None)


def average_options(
    x: Node, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> PoolOptions:  # fmt: skip
    return PoolOptions(kernel_size, stride, padding, (1,), ceil_mode, count_include_pad, divisor_override)


@final
@dataclass(frozen=True)
class WindowAxis:
    """Windows along a dimension: `places` in each, how far apart they and the windows are, how many windows."""

    axis: int
    places: int
    spacing: int
    step: int
    windows: Int
    low: int
    high: int
    """Elements of the border that the windows reach, in front of the image and behind it."""


def window_of(pool: Node, oracle: SizeOracle) -> tuple[tuple[WindowAxis, ...], int]:
    """The dimensions of its windows, and what an average divides by; no dimensions where ATen's call stays.

    Raises UnknownRelation.
    """
    target, image = pool.attrs["target"], pool.inputs[0].tensor
    args, named = node_arguments(pool, pool.inputs)
    options = (maximum_options if target in MAXIMA else average_options)(*args, **named)  # type: ignore[arg-type]
    dims, ceil_mode = (MAXIMA | AVERAGES)[target], options.ceil_mode
    axes: list[WindowAxis] = []
    for i, size in enumerate(image.sizes[-dims:]):
        places, step = at(options.kernel, i), at(options.stride or options.kernel, i)
        border, spacing = at(options.padding, i), at(options.dilation, i)
        if not (0 <= 2 * border <= places and step > 0 and spacing > 0) or (border and spacing > 1):
            return (), 1
        windows = pooled(size, places, step, border, spacing, ceil_mode)
        reached, high = (windows - 1) * step + spacing * (places - 1) + 1 - size, border
        if ceil_mode:
            if not isinstance(reached, int) or (reached > border and target in AVERAGES):
                return (), 1
            high = max(reached, border)
        if not oracle.decide(rel_le(1, windows)):
            return (), 1
        axes.append(WindowAxis(image.rank - dims + i, places, spacing, step, windows, border, high))
    area = prod([axis.places for axis in axes])
    uneven = options.divisor is None and not options.border_counts and any([axis.low for axis in axes])
    if uneven or not 1 < area <= MOST_PLACES[image.device.type] or options.divisor == 0:
        return (), 1
    return tuple(axes), area if options.divisor is None else options.divisor


def slices(
    builder: Builder, image: Node, axes: Sequence[WindowAxis], strides: tuple[Int, ...], border: float
) -> Iterator[tuple[tuple[int, ...], Node]]:
    """For each place in a window, in order: the elements that all windows have there, laid out as the result."""
    spec = image.tensor
    if any([axis.low or axis.high for axis in axes]):
        around = [0] * (spec.rank - len(axes))
        low, high = (*around, *[axis.low for axis in axes]), (*around, *[axis.high for axis in axes])
        image = builder.node("pad", image, builder.constant(border, spec.dtype, spec.device), low=low, high=high)
    for places in combinations(*[range(axis.places) for axis in axes]):
        part = image
        for axis, place in zip(axes, places, strict=True):
            if axis.places == axis.step == 1:
                continue
            start = place * axis.spacing
            stop = start + (axis.windows - 1) * axis.step + 1
            part = builder.node("slice", part, axis=axis.axis, start=start, stop=stop, step=axis.step)
        yield places, builder.node("clone", part, strides=strides)


def average(builder: Builder, pool: Node, axes: Sequence[WindowAxis], divisor: int) -> Node:
    """Sums and their division as in ATen: in float32 at least, places in order."""
    (image,), given = pool.inputs, pool.tensor
    dtype = torch.promote_types(given.dtype, torch.float32)
    total: Node | None = None
    for _, part in slices(builder, image, axes, given.strides, 0.0):
        part = part if part.tensor.dtype is dtype else builder.node("convert", part, dtype=dtype)
        total = part if total is None else builder.node("add", total, part)
    assert total is not None, "a window has a place"
    mean = builder.node("div", total, builder.constant(float(divisor), dtype, given.device))
    return mean if dtype is given.dtype else builder.node("convert", mean, dtype=given.dtype)


def maxima(builder: Builder, pool: Node, axes: Sequence[WindowAxis], strides: tuple[Int, ...]) -> tuple[Node, Node]:
    """The largest element of each window, the last NaN or the first of equals, and its number in the image."""
    image = pool.inputs[0].tensor
    widths = [product(image.sizes[axis.axis + 1 :]) for axis in axes]
    first, found = window_starts(builder, axes, widths, image)
    best: Node | None = None
    for places, part in slices(builder, pool.inputs[0], axes, strides, -inf):
        if best is None:
            best = part
            continue
        better = builder.node("bitwise_or", builder.node("gt", part, best), builder.node("ne", part, part))
        away = sum([place * axis.spacing * width for place, axis, width in zip(places, axes, widths, strict=True)])
        found = builder.node("where", better, builder.constant(away, found.tensor.dtype, image.device), found)
        best = builder.node("where", better, part, best)
    assert best is not None, "a window has a place"
    return best, builder.node("convert", builder.node("add", first, found), dtype=torch.int64)


def window_starts(
    builder: Builder, axes: Sequence[WindowAxis], widths: Sequence[Int], image: TensorSpec
) -> tuple[Node, Node]:
    """The number of each window's first place, which may lie in the border, and how far behind it the image begins."""
    count = product(image.sizes[axes[0].axis :])
    fits = isinstance(count, int) and count <= torch.iinfo(torch.int32).max
    dtype = torch.int32 if fits else torch.int64
    nothing = builder.constant(0, dtype, image.device)
    starts = outside = nothing
    for axis, width in zip(axes, widths, strict=True):
        attrs = {"length": axis.windows, "start": -axis.low * width, "step": axis.step * width}
        start = builder.node("iota", **attrs, dtype=dtype, device=image.device)
        for _ in range(axes[-1].axis - axis.axis):
            start = builder.node("unsqueeze", start, axis=start.tensor.rank)
        starts = start if starts is nothing else builder.node("add", starts, start)
        if axis.low:
            outside = builder.node("add", outside, builder.node("maximum", builder.node("neg", start), nothing))
    return starts, outside
