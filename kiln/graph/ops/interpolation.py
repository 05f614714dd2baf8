"""Images of other sizes: interpolation.

    upsample_linear1d(x: f32[1, 1, 2], [4], False)
        at = [0.0, 0.25, 0.75, 1.0]                       where the centres of the four elements lie among the two
        = x[at] * (1 - fraction(at)) + x[at + 1] * fraction(at)

    upsample_nearest1d(x: f32[1, 1, 2], [4])
        = reshape(expand(unsqueeze(x, 3), [1, 1, 2, 2]), [1, 1, 4])

The nearest element is a repetition where the sizes are multiples; else it is an ATen call. On a GPU linear and cubic
interpolation are sums of weighted elements, which are fused with what is around them: ATen's kernels there have one
thread for all rows and channels of a point. On a CPU they are ATen calls, of which a pass for Kiln's kernels makes
steps (`graph/passes/resample_in_steps.py`). Gradients: `interpolation_gradients.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast, final

import torch

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops.convolution import Sizes, format_of, laid_out
from kiln.graph.ops.creation import iota, relaid
from kiln.graph.ops.emit import Emit, Operand
from kiln.graph.ops.promotion import OPMATH
from kiln.graph.ops.reductions import reduce
from kiln.graph.ops.registry import DECOMPOSITIONS, Decomposition, library
from kiln.graph.ops.sizes import has_no_elements
from kiln.support.records import dataclass
from kiln.symbolic import Int, is_static
from kiln.symbolic.values import Real
from kiln.tensor.spec import CPU, TensorSpec

Factor = float | Real | None
"""By how much a dimension is scaled, or None: by the ratio of the sizes."""
Taps = list[tuple[Node, Node]]
"""Indices of elements along one dimension, and their weights."""
KEYS = -0.75
"""The parameter of the cubic kernel (Keys, IEEE TASSP 29 (1981), 1153-1160), as eager has it."""


@library("_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
def upsample(e: Emit, x: Node, output_size: Sizes, *args: object, **kwargs: object) -> TensorSpec:
    return image_of(e, x.tensor, output_size)


def image_of(e: Emit, like: TensorSpec, sizes: Sizes) -> TensorSpec:
    """Images of other `sizes`, in the memory format of `like`."""
    return laid_out(like, (*like.sizes[:2], *sizes), format_of(e, like))


@final
@dataclass(frozen=True, slots=True)
class Resampled:
    """One dimension that is resampled."""

    before: Int
    after: Int
    align_corners: bool
    factor: Factor


def linear_taps(e: Emit, axis: Resampled, dtype: torch.dtype, device: torch.device) -> Taps:
    """The two elements around each point; points in front of the first centre have the value there."""
    at = coordinates(e, axis, dtype, device)
    if not axis.align_corners:
        at = e.pointwise("maximum", at, 0.0)
    low = e.convert(e.pointwise("floor", at), torch.int64)
    fraction = e.pointwise("sub", at, e.convert(low, dtype))
    return [
        (inside(e, low, axis.before), e.pointwise("sub", 1.0, fraction)),
        (inside(e, e.pointwise("add", low, 1), axis.before), fraction),
    ]


def cubic_taps(e: Emit, axis: Resampled, dtype: torch.dtype, device: torch.device) -> Taps:
    """The four elements around each point, by Keys' kernel."""
    at = coordinates(e, axis, dtype, device)
    floor = e.pointwise("floor", at)
    low, t = e.convert(floor, torch.int64), e.pointwise("sub", at, floor)
    rest = e.pointwise("sub", 1.0, t)
    weights = [
        outer_weight(e, e.pointwise("add", t, 1.0)), inner_weight(e, t), inner_weight(e, rest),
        outer_weight(e, e.pointwise("add", rest, 1.0)),
    ]  # fmt: skip
    return [(inside(e, e.pointwise("add", low, k - 1), axis.before), weights[k]) for k in range(4)]


def polynomial(e: Emit, x: Node, coefficients: Sequence[float]) -> Node:
    """By Horner's rule, the highest power first."""
    value: Operand = coefficients[0]
    for coefficient in coefficients[1:]:
        value = e.pointwise("add", e.pointwise("mul", value, x), coefficient)
    assert isinstance(value, Node)
    return value


def inner_weight(e: Emit, x: Node) -> Node:
    """Of a distance below 1."""
    return polynomial(e, x, (KEYS + 2, -(KEYS + 3), 0.0, 1.0))


def outer_weight(e: Emit, x: Node) -> Node:
    """Of a distance between 1 and 2."""
    return polynomial(e, x, (KEYS, -5 * KEYS, 8 * KEYS, -4 * KEYS))


def coordinates(e: Emit, axis: Resampled, dtype: torch.dtype, device: torch.device) -> Node:
    """Where the elements of the result lie among those of the image."""
    at = e.convert(iota(e, axis.after, torch.int64, device), dtype)
    step = distance(e, axis, dtype, device)
    if axis.align_corners:
        return e.pointwise("mul", at, step)
    return e.pointwise("sub", e.pointwise("mul", e.pointwise("add", at, 0.5), step), 0.5)


def distance(e: Emit, axis: Resampled, dtype: torch.dtype, device: torch.device) -> Node:
    """Between two neighbours of the result."""

    def number(value: Int | float | Real) -> Node:
        return e.number(value, dtype, device)

    if axis.align_corners:
        steps = e.pointwise("maximum", number(axis.after - 1), 1.0)  # of one element, which is the first
        return e.pointwise("div", number(axis.before - 1), steps)
    if axis.factor is not None:
        return e.pointwise("div", 1.0, number(axis.factor))
    return e.pointwise("div", number(axis.before), number(axis.after))


def inside(e: Emit, index: Node, size: Int) -> Node:
    """`index`, or the nearest one in a dimension of `size`."""
    last = e.number(size - 1, torch.int64, index.tensor.device)
    return e.pointwise("maximum", e.pointwise("minimum", index, last), 0)


Rule = Callable[[Emit, Resampled, torch.dtype, torch.device], Taps]


def interpolated(e: Emit, x: Node, axes: Sequence[Resampled], taps: Rule) -> Node:
    """The weighted sum, dimension by dimension, in eager's order: the last dimension first."""
    spec = x.tensor
    dtype = OPMATH.get(spec.dtype, spec.dtype)
    found = [taps(e, axis, dtype, spec.device) for axis in axes]
    where = tuple(range(2, spec.rank))

    def summed(chosen: tuple[Node, ...], rest: Sequence[Taps]) -> Node:
        if not rest:
            return e.convert(e.node("index", x, *chosen, axes=where), dtype)
        parts = [
            e.pointwise("mul", summed((*chosen, column(e, index, len(rest))), rest[1:]), column(e, weight, len(rest)))
            for index, weight in rest[0]
        ]
        return functools.reduce(functools.partial(e.pointwise, "add"), parts)

    value = e.convert(summed((), found), spec.dtype)
    return relaid(e, value, image_of(e, spec, [axis.after for axis in axes]).strides)


def interpolated_in_steps(e: Emit, x: Node, axes: Sequence[Resampled], taps: Rule) -> Node:
    """The weighted sum of each dimension from that of the one before: those that shrink first, then the last first."""
    spec, sizes = x.tensor, list(x.tensor.sizes[2:])
    dtype = OPMATH.get(spec.dtype, spec.dtype)
    shrinking = [position for position, axis in enumerate(axes) if shrinks(axis)]
    growing = [position for position in reversed(range(len(axes))) if position not in shrinking]
    for position in (*shrinking, *growing):
        sizes[position] = axes[position].after
        if taps is linear_taps and axes[position].before == axes[position].after:
            # In eager an element is its own neighbour, whatever the factor: x * 1 + x * 0, NaN for infinite x.
            x = e.convert(x, dtype)
            x = e.pointwise("add", x, e.pointwise("mul", x, 0.0))
            continue
        parts = [
            e.pointwise(
                "mul", e.convert(e.node("index", x, index, axes=(2 + position,)), dtype),
                column(e, weight, len(axes) - position),
            )
            for index, weight in taps(e, axes[position], dtype, spec.device)
        ]  # fmt: skip
        x = relaid(e, functools.reduce(functools.partial(e.pointwise, "add"), parts), image_of(e, spec, sizes).strides)
    return relaid(e, e.convert(x, spec.dtype), image_of(e, spec, sizes).strides)


def shrinks(axis: Resampled) -> bool:
    return is_static(axis.before) and is_static(axis.after) and axis.after < axis.before


def column(e: Emit, x: Node, rank: int) -> Node:
    """A vector along the first of `rank` dimensions."""
    for axis in range(1, rank):
        x = e.node("unsqueeze", x, axis=axis)
    return x


def _interpolation(name: str, taps: Rule) -> Decomposition:
    def rule(e: Emit, x: Node, output_size: Sizes, align_corners: bool, *factors: Factor) -> Node:
        spec, made = x.tensor, image_of(e, x.tensor, output_size)
        if spec.device.type == "cpu" or not spec.dtype.is_floating_point or has_no_elements(e, spec, made):
            args = cast(Sequence[Argument], (x, list(output_size), align_corners, *factors))
            return e.library(name, args, {}, made)
        axes = [
            Resampled(before, after, align_corners, factor)
            for before, after, factor in zip(
                spec.sizes[2:], output_size, each_factor(output_size, factors), strict=True
            )
        ]
        if keeps_sizes(axes):
            return relaid(e, e.node("clone", x, strides=None), made.strides)
        return interpolated(e, x, axes, taps)

    return rule


def keeps_sizes(axes: Sequence[Resampled]) -> bool:
    """Then a GPU copies in eager, whatever the factors are."""
    return all([axis.before == axis.after for axis in axes])


def each_factor(sizes: Sizes, factors: Sequence[Factor]) -> Sequence[Factor]:
    """Of each dimension; eager goes by the sizes where one is not above 0."""
    given = factors or [None] * len(sizes)
    return [None if isinstance(factor, float) and not factor > 0 else factor for factor in given]


DECOMPOSITIONS["upsample_linear1d.default"] = _interpolation("aten.upsample_linear1d.default", linear_taps)
DECOMPOSITIONS["upsample_bilinear2d.default"] = _interpolation("aten.upsample_bilinear2d.default", linear_taps)
DECOMPOSITIONS["upsample_trilinear3d.default"] = _interpolation("aten.upsample_trilinear3d.default", linear_taps)
DECOMPOSITIONS["upsample_bicubic2d.default"] = _interpolation("aten.upsample_bicubic2d.default", cubic_taps)


# The nearest element.

MOST_PLACES = 1 << 24
"""Numbers up to this are exact in float32, in which eager computes places."""


def repeats(before: Int, after: Int, factor: Factor, shift: float) -> int | None:
    """How often each element is repeated, if the nearest elements to the places of the result are just that.

    Eager rounds in float32 and so may take a neighbour: sizes that are known are tried, of others only powers of two
    are taken, which are exact.
    """
    if isinstance(before, int) and isinstance(after, int):
        if not 0 < before <= after <= MOST_PLACES or after % before:
            return None
        step = 1 / factor if isinstance(factor, float) and factor > 0 else before / after
        at = torch.arange(after, dtype=torch.float32, device=CPU)
        nearest = ((at + shift) * torch.tensor(step, dtype=torch.float32, device=CPU)).floor().clamp(max=before - 1)
        count = after // before
        return count if bool((nearest == (at / count).floor()).all()) else None
    count = next((count for count in (1, 2, 4, 8) if after == before * count), 0)
    return count if count and factor in (None, float(count)) else None


def _nearest(name: str, shift: float) -> Decomposition:
    def rule(e: Emit, x: Node, output_size: Sizes, *factors: Factor) -> Node:
        spec, made = x.tensor, image_of(e, x.tensor, output_size)
        times = list(map(repeats, spec.sizes[2:], output_size, each_factor(output_size, factors), [shift] * 3))
        if not takes(spec, times) or has_no_elements(e, spec):
            args = cast(Sequence[Argument], (x, list(output_size), *factors))
            return e.library(name, args, {}, made)
        parts, whole = [*spec.sizes[:2]], x
        for axis, (size, count) in enumerate(zip(spec.sizes[2:], times, strict=True)):
            assert count is not None
            whole = e.node("unsqueeze", whole, axis=2 * axis + 3)
            parts += [size, count]
        return relaid(e, e.node("reshape", e.node("expand", whole, sizes=tuple(parts)), sizes=made.sizes), made.strides)

    return rule


def takes(spec: TensorSpec, times: Sequence[int | None]) -> bool:
    """Whether images of this dtype are repeated: eager refuses others, and copies those that keep their sizes."""
    return spec.dtype.is_floating_point and None not in times and any([count != 1 for count in times])


def _nearest_backward(name: str, shift: float) -> Decomposition:
    def rule(e: Emit, grad: Node, output_size: Sizes, input_size: Sizes, *factors: Factor) -> Node:
        """The sum over the copies of each element."""
        spec, made = grad.tensor, image_of(e, grad.tensor, input_size[2:])
        times = list(map(repeats, input_size[2:], output_size, each_factor(output_size, factors), [shift] * 3))
        if not takes(spec, times) or has_no_elements(e, made):
            args = cast(Sequence[Argument], (grad, list(output_size), list(input_size), *factors))
            return e.library(name, args, {}, made)
        parts = [*spec.sizes[:2]]
        for size, count in zip(input_size[2:], times, strict=True):
            assert count is not None
            parts += [size, count]
        copies = tuple(range(3, len(parts), 2))
        total = reduce(e, "sum", e.node("reshape", grad, sizes=tuple(parts)), copies)
        return relaid(e, total, made.strides)

    return rule


for _rank in (1, 2, 3):
    for _name, _shift in ((f"upsample_nearest{_rank}d", 0.0), (f"_upsample_nearest_exact{_rank}d", 0.5)):
        DECOMPOSITIONS[f"{_name}.default"] = _nearest(f"aten.{_name}.default", _shift)
        DECOMPOSITIONS[f"{_name}_backward.default"] = _nearest_backward(f"aten.{_name}_backward.default", _shift)
