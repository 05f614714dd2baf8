"""Gradients of interpolated images on a GPU: each element collects what it gave, dimension by dimension.

    upsample_linear1d_backward(grad: f32[1, 1, 8], [8], [1, 1, 4], False)
        element i may have been read for the four points from 2 * i - 1
        = sum over j < 4 of grad[p] * (weight of tap 0 at p where its index is i, and of tap 1),    p = 2 * i - 1 + j

ATen adds to each element from all points at once, by atomic operations in the dtype of the image.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast, final

import torch

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops.convolution import Sizes
from kiln.graph.ops.creation import iota, relaid
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.interpolation import (
    Factor,
    Resampled,
    Rule,
    cubic_taps,
    each_factor,
    image_of,
    keeps_sizes,
    linear_taps,
)
from kiln.graph.ops.promotion import OPMATH
from kiln.graph.ops.registry import DECOMPOSITIONS, Decomposition
from kiln.graph.ops.sizes import has_no_elements
from kiln.support.records import dataclass
from kiln.symbolic import is_static
from kiln.tensor.spec import CPU

REACH: dict[Rule, int] = {linear_taps: 1, cubic_taps: 2}
"""How many elements are read on each side of a point."""
SLACK = 1e-4
"""A point this near to an element, in relation to its place, may be on either side of it: places are rounded."""
MOST_POINTS = 256
"""Of one element: a longer sum is the library's."""


@final
@dataclass(frozen=True, slots=True)
class Window:
    """The points for which element i may be read: `count` from `i * after // before + first`."""

    first: int
    count: int


def window_of(axis: Resampled, reach: int) -> Window | None:
    """None where sizes are not known, or the points are too many."""
    before, after = axis.before, axis.after
    if not is_static(before) or not is_static(after) or not (axis.factor is None or isinstance(axis.factor, float)):
        return None
    assert isinstance(before, int)
    assert isinstance(after, int)
    points = torch.arange(after, dtype=torch.float64, device=CPU)
    if axis.align_corners:
        at = points * ((before - 1) / max(after - 1, 1))
    else:
        at = (points + 0.5) * (before / after if axis.factor is None else 1 / axis.factor) - 0.5
    slack = SLACK * (1 + at.abs())
    lows = ((at - slack).floor() - (reach - 1)).clamp(0, before - 1)
    highs = ((at + slack).floor() + reach).clamp(0, before - 1)
    elements = torch.arange(before, device=CPU)
    # Points rise with the elements that they read: the first to read i or more, and the last to read i or less.
    starts = torch.searchsorted(highs, elements.to(torch.float64))
    stops = torch.searchsorted(lows, elements.to(torch.float64), right=True)
    about = elements * after // before
    read = starts < stops
    if not bool(read.any()):
        return None
    first = int((starts - about)[read].min())
    count = int((stops - about)[read].max()) - first
    return Window(first, count) if count <= MOST_POINTS else None


def collected(e: Emit, x: Node, position: int, rank: int, axis: Resampled, window: Window, taps: Rule) -> Node:
    """The gradient along the dimension at `position` of `rank`, of `x` in the dtype of its sum."""
    dtype, device = x.tensor.dtype, x.tensor.device
    behind = rank - position - 1
    element = spread(e, iota(e, axis.before, torch.int64, device), 1)
    before, after = (e.number(size, torch.int64, device) for size in (axis.before, axis.after))
    about = e.pointwise("floor_div", e.pointwise("mul", element, after), before)
    point = e.pointwise("add", about, iota(e, window.count, torch.int64, device, start=window.first))
    last = e.number(axis.after - 1, torch.int64, device)
    nearest = e.pointwise("maximum", e.pointwise("minimum", point, last), 0)
    exists = e.pointwise("eq", point, nearest)
    given = e.node("index", x, nearest, axes=(2 + position,))
    zero = e.number(0.0, dtype, device)
    parts = []
    for index, weight in taps(e, axis, dtype, device):
        reads = e.pointwise("eq", e.node("index", index, nearest, axes=(0,)), element)
        share = e.pointwise("mul", given, spread(e, e.node("index", weight, nearest, axes=(0,)), behind))
        reads = spread(e, e.pointwise("bitwise_and", reads, exists), behind)
        parts.append(e.node("where", reads, share, zero))
    return e.node("sum", functools.reduce(functools.partial(e.pointwise, "add"), parts), axes=(3 + position,))


def spread(e: Emit, x: Node, count: int) -> Node:
    """`x` with `count` more dimensions behind its own."""
    for _ in range(count):
        x = e.node("unsqueeze", x, axis=x.tensor.rank)
    return x


def _gradient(name: str, taps: Rule) -> Decomposition:
    def rule(
        e: Emit, grad: Node, output_size: Sizes, input_size: Sizes, align_corners: bool, *factors: Factor
    ) -> Node:  # fmt: skip
        spec, made = grad.tensor, image_of(e, grad.tensor, input_size[2:])
        scales = each_factor(output_size, factors)
        sizes = zip(input_size[2:], output_size, scales, strict=True)
        axes = [Resampled(before, after, align_corners, factor) for before, after, factor in sizes]
        windows = [window_of(axis, REACH[taps]) for axis in axes]
        on_gpu = spec.device.type != "cpu" and spec.dtype.is_floating_point
        if not on_gpu or None in windows or has_no_elements(e, spec, made):
            args = cast(Sequence[Argument], (grad, list(output_size), list(input_size), align_corners, *factors))
            return e.library(name, args, {}, made)
        if keeps_sizes(axes):
            return relaid(e, e.node("clone", grad, strides=None), made.strides)
        x = e.convert(grad, OPMATH.get(spec.dtype, spec.dtype))
        for position in reversed(range(len(axes))):
            window = windows[position]
            assert window is not None
            x = collected(e, x, position, len(axes), axes[position], window, taps)
        return relaid(e, e.convert(x, spec.dtype), made.strides)

    return rule


for _name, _taps in (
    ("upsample_linear1d", linear_taps), ("upsample_bilinear2d", linear_taps),
    ("upsample_trilinear3d", linear_taps), ("upsample_bicubic2d", cubic_taps),
):  # fmt: skip
    DECOMPOSITIONS[f"{_name}_backward.default"] = _gradient(f"aten.{_name}_backward.default", _taps)
