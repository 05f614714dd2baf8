"""torch.nn.functional.interpolate for images with symbolic sizes, whose C++ computes the new sizes from plain ones.

interpolate(x: f32[2, 3, s0, s1], scale_factor=2)    =>    aten.upsample_nearest2d(x, [2*s0, 2*s1], 2.0, 2.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate as torch_interpolate

from kiln.graph.trace.log import Target

aten = torch.ops.aten
UPSAMPLE: Mapping[tuple[str, int], Callable[..., Tensor]] = {
    ("nearest", 3): aten.upsample_nearest1d.default,
    ("nearest", 4): aten.upsample_nearest2d.default,
    ("nearest", 5): aten.upsample_nearest3d.default,
    ("nearest-exact", 3): aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 4): aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 5): aten._upsample_nearest_exact3d.default,
    ("linear", 3): aten.upsample_linear1d.default,
    ("bilinear", 4): aten.upsample_bilinear2d.default,
    ("bicubic", 4): aten.upsample_bicubic2d.default,
    ("trilinear", 5): aten.upsample_trilinear3d.default,
    ("bilinear antialias", 4): aten._upsample_bilinear2d_aa.default,
    ("bicubic antialias", 4): aten._upsample_bicubic2d_aa.default,
}
"""By mode and rank. Those without "nearest" take `align_corners`."""


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """torch.nn.functional.interpolate; what it refuses, or computes in other ways, is left to it."""
    op, sizes = (
        UPSAMPLE.get((f"{mode} antialias" if antialias else mode, input.dim())),
        spatial_sizes(input, size, scale_factor),
    )
    nearest = mode.startswith("nearest")
    if (
        op is None
        or sizes is None
        or (recompute_scale_factor and size is not None)
        or (nearest and align_corners is not None)
    ):
        return torch_interpolate(
            *(input, size, scale_factor, mode, align_corners, recompute_scale_factor), antialias=antialias
        )
    given = size is None and not recompute_scale_factor
    scales = per_axis(input, scale_factor) if given else [None] * len(sizes)
    return op(input, sizes, *scales) if nearest else op(input, sizes, bool(align_corners), *scales)


def spatial_sizes(
    input: Tensor, size: int | Sequence[int] | None, scale: float | Sequence[float] | None
) -> list[int] | None:
    """The sizes of the result; None where they cannot be written with symbols."""
    rank = input.dim() - 2
    if (size is None) == (scale is None):
        return None
    if size is not None:
        sizes = [*size] if isinstance(size, Sequence) else [size] * rank
        return sizes if len(sizes) == rank else None
    scales = per_axis(input, scale)
    if len(scales) != rank:
        return None
    found = [scaled(length, factor) for length, factor in zip(input.shape[2:], scales, strict=True)]
    exact = [size for size in found if size is not None]
    return exact if len(exact) == rank else None


def per_axis(input: Tensor, scale: float | Sequence[float] | None) -> list[float]:
    scales: list[object] = [*scale] if isinstance(scale, Sequence) else [scale] * (input.dim() - 2)
    return [as_float(factor) for factor in scales]


def as_float(factor: object) -> float:
    if isinstance(factor, torch.SymFloat):
        return factor  # type: ignore[return-value]
    return float(factor) if isinstance(factor, int | float) else float("nan")


def scaled(length: int, factor: float) -> int | None:
    """As eager computes it: the product as a double, truncated, which is computed in front of the region if need be."""
    return math.trunc(length * factor) if factor > 0 else None


def overload_of(mode: str) -> Callable[..., Tensor]:
    """The overload that graphs of torch.export call: `(input, sizes, [align_corners,] scales)`."""

    kind, _, antialias = mode.partition(" ")

    def upsample(input: Tensor, output_size: Sequence[int] | None, *rest: object) -> Tensor:
        align = None if mode.startswith("nearest") else bool(rest[0])
        scales = rest[-1] if len(rest) > (align is not None) else None
        return interpolate(input, output_size, scales, kind, align, antialias=bool(antialias))  # type: ignore[arg-type]

    return upsample


UPSAMPLE_OVERLOADS: Mapping[Target, Callable[..., Tensor]] = {
    getattr(aten, op._schema.name.partition("::")[2]).vec: overload_of(mode)  # type: ignore[attr-defined]
    for (mode, _), op in UPSAMPLE.items()
}
"""The overloads for images, whose C++ takes no symbols."""
