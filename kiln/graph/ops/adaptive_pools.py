"""Averages over windows that cover a dimension in a given number, and their gradients.

    _adaptive_avg_pool2d(x: f32[1, 2, 4, 5], [2, 3])        rows [0, 2), [2, 4); columns [0, 2), [1, 4), [3, 5)

Of `count` windows over a dimension of `size`, number i is [floor(i * size / count), ceil((i + 1) * size / count)). The
windows in which an element lies are given by the formula with `size` and `count` exchanged: the gradient is such a sum.
On a GPU they are sums of elements read at computed places, for sizes that are known; else an ATen call.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast, final

import torch

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops.convolution import Sizes, format_of, input_gradient, laid_out
from kiln.graph.ops.creation import iota, relaid
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.image_padding import FLOATS
from kiln.graph.ops.interpolation import inside
from kiln.graph.ops.promotion import OPMATH
from kiln.graph.ops.reductions import reduce
from kiln.graph.ops.registry import DECOMPOSITIONS, Decomposition
from kiln.support.records import dataclass
from kiln.symbolic import is_static
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Windows:
    """`count` windows over a dimension of `size`."""

    size: int
    count: int

    def bounds(self, number: int) -> tuple[int, int]:
        return number * self.size // self.count, -(-(number + 1) * self.size // self.count)

    def lengths(self) -> list[int]:
        return [stop - start for start, stop in map(self.bounds, range(self.count))]

    @property
    def longest(self) -> int:
        return max(self.lengths())

    @property
    def are_equal(self) -> bool:
        """Whether all have one length; they may overlap."""
        return min(self.lengths()) == self.longest

    @property
    def are_even(self) -> bool:
        return self.size % self.count == 0

    def swapped(self) -> Windows:
        """The windows in which each element lies."""
        return Windows(self.count, self.size)


def bounds(e: Emit, windows: Windows, device: torch.device) -> tuple[Node, Node]:
    """Of each window."""
    at = e.pointwise("mul", iota(e, windows.count, torch.int64, device), windows.size)
    stop = e.pointwise("add", at, windows.size + windows.count - 1)
    return e.pointwise("floor_div", at, windows.count), e.pointwise("floor_div", stop, windows.count)


def places(e: Emit, windows: Windows, device: torch.device) -> tuple[Node, Node | None]:
    """The elements of each window, [count, longest], and which of them are in it; None if all are."""
    start, stop = [e.node("unsqueeze", bound, axis=1) for bound in bounds(e, windows, device)]
    at = e.pointwise("add", start, iota(e, windows.longest, torch.int64, device))
    return inside(e, at, windows.size), None if windows.are_equal else e.pointwise("lt", at, stop)


def window_sums(e: Emit, x: Node, windows: Sequence[Windows]) -> Node:
    """The sums over windows along the last dimensions."""
    spec, dims = x.tensor, len(windows)
    first = spec.rank - dims
    if all(each.are_even for each in windows):
        split = [size for each in windows for size in (each.count, each.size // each.count)]
        parts = e.node("reshape", x, sizes=(*spec.sizes[:first], *split))
        return reduce(e, "sum", parts, tuple(range(first + 1, first + 2 * dims, 2)))
    indices, masks = [], []
    for position, each in enumerate(windows):
        at, inside = places(e, each, spec.device)
        indices.append(spread(e, at, 2 * (dims - 1 - position)))
        if inside is not None:
            masks.append(spread(e, inside, 2 * (dims - 1 - position)))
    parts = e.node("index", x, *indices, axes=tuple(range(first, spec.rank)))
    for mask in masks:
        parts = e.pointwise("where", mask, parts, 0.0)
    return reduce(e, "sum", parts, tuple(range(first + 1, first + 2 * dims, 2)))


def spread(e: Emit, x: Node, behind: int) -> Node:
    """With so many dimensions of one element behind its own."""
    for _ in range(behind):
        x = e.node("unsqueeze", x, axis=x.tensor.rank)
    return x


def by_areas(e: Emit, x: Node, windows: Sequence[Windows]) -> Node:
    """`x`, an element for each window, divided by the number of elements of the window."""
    equal, dtype = prod([each.longest for each in windows if each.are_equal]), x.tensor.dtype
    area: Node | float = float(equal)
    for position, each in enumerate(windows):
        if not each.are_equal:
            start, stop = bounds(e, each, x.tensor.device)
            length = e.convert(e.pointwise("sub", stop, start), dtype)
            area = e.pointwise("mul", spread(e, length, len(windows) - 1 - position), area)
    return e.pointwise("div", x, area)


def known_windows(x: TensorSpec, sizes: Sizes) -> list[Windows] | None:
    """Those over the last dimensions of images on a GPU; None for others, and for what eager refuses."""
    dims, known = len(sizes), all(map(is_static, [*x.sizes, *sizes]))
    if x.device.type == "cpu" or x.dtype not in FLOATS or x.rank - dims not in (1, 2) or not known:
        return None
    windows = [Windows(cast(int, size), cast(int, count)) for size, count in zip(x.sizes[-dims:], sizes, strict=True)]
    return None if 0 in x.sizes or min([each.count for each in windows]) < 1 else windows


def average(e: Emit, x: Node, windows: Sequence[Windows]) -> Node:
    wide = e.convert(x, OPMATH.get(x.tensor.dtype, x.tensor.dtype))
    return e.convert(by_areas(e, window_sums(e, wide, windows), windows), x.tensor.dtype)


def average_gradient(e: Emit, grad: Node, windows: Sequence[Windows]) -> Node:
    shares = by_areas(e, e.convert(grad, OPMATH.get(grad.tensor.dtype, grad.tensor.dtype)), windows)
    return e.convert(window_sums(e, shares, [each.swapped() for each in windows]), grad.tensor.dtype)


def _average(name: str, dims: int) -> Decomposition:
    def rule(e: Emit, x: Node, output_size: Sizes) -> Node:
        spec, windows = x.tensor, known_windows(x.tensor, output_size)
        made = laid_out(spec, (*spec.sizes[: -len(output_size)], *output_size), format_of(e, spec))
        if windows is None or len(windows) != dims:
            return e.library(name, cast(Sequence[Argument], (x, list(output_size))), {}, made)
        return relaid(e, average(e, x, windows), made.strides)

    return rule


def _average_gradient(name: str, dims: int) -> Decomposition:
    def rule(e: Emit, grad: Node, x: Node) -> Node:
        windows, made = known_windows(x.tensor, grad.tensor.sizes[-dims:]), input_gradient(e, grad, x)
        if windows is None:
            return e.library(name, (grad, x), {}, made)
        return relaid(e, average_gradient(e, grad, windows), made.strides)

    return rule


for _dims in (2, 3):
    _name = f"_adaptive_avg_pool{_dims}d"
    DECOMPOSITIONS[f"{_name}.default"] = _average(f"aten.{_name}.default", _dims)
    DECOMPOSITIONS[f"{_name}_backward.default"] = _average_gradient(f"aten.{_name}_backward.default", _dims)
