"""Functions whose C++ takes plain numbers and computes with them, in torch calls that take symbolic ones.

    torch.normal(0.0, sigma, (3,))     =>     torch.empty((3,)).normal_(0.0, sigma)

Only recorded calls with symbolic numbers among the arguments, and without `out`, take these; the log keeps the call
that the user wrote.
The random numbers are those that eager would draw.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch import arange as torch_arange
from torch import linspace as torch_linspace
from torch import norm as torch_norm
from torch import normal as torch_normal
from torch import round as torch_round
from torch.nn.functional import alpha_dropout as torch_alpha_dropout
from torch.nn.functional import normalize as torch_normalize
from torch.nn.functional import pad as torch_pad

from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.trace.composites import WIDE, assert_classes, checked_one_hot
from kiln.graph.trace.index_pairs import tril_indices, triu_indices
from kiln.graph.trace.log import Target
from kiln.graph.trace.resampling import interpolate

SELU_SLOPE = 1.7580993408473766
"""The negative saturation of SELU, as alpha_dropout has it."""


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    if not training or inplace or not 0 < p < 1:
        return torch_alpha_dropout(input, p, training, inplace)  # type: ignore[arg-type]
    keep = 1 - p
    scale = ((SELU_SLOPE * SELU_SLOPE * p + 1) * keep) ** -0.5
    noise = torch.empty_like(input).bernoulli_(keep)  # type: ignore[call-overload]
    dropped = noise.sub(1).mul(SELU_SLOPE * scale).add(SELU_SLOPE * scale * p)
    made: Tensor = input * noise.mul(scale) + dropped
    return made


def normal(
    mean: float | Tensor,
    std: float | Tensor = 1.0,
    size: tuple[int, ...] | None = None,
    *,
    generator: torch.Generator | None = None,
    **options: object,
) -> Tensor:
    if size is None or options.keys() - {"dtype", "device"} or isinstance(mean, Tensor) or isinstance(std, Tensor):
        given = {"generator": generator, **options}
        sized = () if size is None else (size,)
        made: Tensor = torch_normal(mean, std, *sized, **given)  # type: ignore[call-overload]
        return made
    return torch.empty(size, **options).normal_(mean, std, generator=generator)  # type: ignore[call-overload,no-any-return]


def uniform_(x: Tensor, first: float = 0.0, last: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """As the kernel does it: `random * (last - first) + first`."""
    if x.dtype not in (torch.float32, torch.float64) or x.requires_grad:
        raise UnsupportedOp(op="aten.uniform_.default", reason="its bounds change from call to call")
    require_within(x.dtype, first, last)
    if first > last:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={first} > to={last}")
    return x.uniform_(generator=generator).mul_(last - first).add_(first)


def linspace(start: float | Tensor, end: float | Tensor, steps: int, **options: object) -> Tensor:
    """Both halves are counted from their ends."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    tensors = isinstance(start, Tensor) or isinstance(end, Tensor)
    if tensors or options.keys() - {"dtype", "device"} or dtype not in WIDE or steps < 2:
        return torch_linspace(start, end, steps, **options)  # type: ignore[arg-type,call-overload,no-any-return]
    require_within(dtype, start, end)
    step = (end - start) / (steps - 1)
    up = torch_arange(steps, **{**options, "dtype": dtype})  # type: ignore[call-overload]
    made: Tensor = torch.where(up < steps // 2, up * step + start, end - (steps - 1 - up) * step)
    return made


def require_within(dtype: torch.dtype, *numbers: float | Tensor) -> None:
    """Eager converts these numbers, and refuses those out of range."""
    largest = torch.finfo(dtype).max
    beyond = [n for n in numbers if not isinstance(n, Tensor) and not -largest <= n <= largest]
    if any([math.isfinite(n) for n in beyond]):
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")


def arange(*bounds: float, dtype: torch.dtype | None = None, **options: object) -> Tensor:
    """With floats; the length is computed in front of the region."""
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
    made: Tensor
    wanted = dtype or torch.get_default_dtype()
    if is_integral(start, end, step) or wanted not in WIDE or options.keys() - {"device"}:
        made = torch_arange(*bounds, dtype=dtype, **options)  # type: ignore[call-overload]
        return made
    distance, length = (end - start) / step, 0
    if not (distance >= 0 and (length := math.ceil(distance)) >= 0):
        made = torch_arange(*map(float, bounds), dtype=dtype, **options)  # type: ignore[call-overload]
        return made
    made = torch_arange(length, dtype=torch.float64, **options)  # type: ignore[call-overload]
    return (made * step + start).to(wanted)


def is_integral(*numbers: object) -> bool:
    return all(isinstance(number, int | torch.SymInt) for number in numbers)


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    if x.dtype is not torch.int64 or not num_classes > 0:
        return checked_one_hot(x, num_classes)
    assert_classes(x, num_classes)
    return (x.unsqueeze(-1) == torch_arange(num_classes, device=x.device)).to(torch.int64)


def spread(name: str) -> Callable[..., Tensor]:
    """`torch.var` or `torch.std` whose `correction` changes: that of all elements, scaled."""
    function: Callable[..., Tensor] = getattr(torch, name)

    def scaled(x: Tensor, *args: object, correction: float | None = 1, **named: object) -> Tensor:
        axes = named.get("dim", args[0] if args else None)
        if not isinstance(correction, torch.SymInt | torch.SymFloat) or x.dtype not in WIDE or len(args) > 1:
            return function(x, *args, correction=correction, **named)
        count: int = math.prod(x.shape[axis] for axis in every_axis(x, axes))
        left = torch.scalar_tensor(count - correction, dtype=x.dtype, device=x.device).clamp(min=0)
        factor = count / left
        whole = function(x, *args, correction=0, **named)
        return whole * (factor.sqrt() if name == "std" else factor)

    return scaled


def every_axis(x: Tensor, axes: object) -> Sequence[int]:
    if axes is None or axes == [] or axes == ():
        return [*range(x.dim())]
    return axes if isinstance(axes, list | tuple) else [axes]  # type: ignore[list-item]


def vector_norm(
    x: Tensor, ord: float = 2, dim: object = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Of an order that is none of those with algorithms of their own."""
    order = ord * 1.0
    general = x.dtype in WIDE and dtype in (None, x.dtype) and not (x.requires_grad and torch.is_grad_enabled())
    if not (general and order > 0 and order != 1 and order != 2 and order < math.inf):
        found: Tensor = torch.linalg.vector_norm(x, float(ord), dim, keepdim, dtype=dtype)  # type: ignore[call-overload]
        return found
    total: Tensor = x.abs().pow(order).sum([*every_axis(x, dim)], keepdim)
    return total.pow(1 / order)


def norm(
    x: Tensor,
    p: float | str | None = "fro",
    dim: object = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if not isinstance(p, torch.SymInt | torch.SymFloat):
        made: Tensor = torch_norm(x, p, dim, keepdim, dtype=dtype)  # type: ignore[call-overload]
        return made
    return vector_norm(x, p, dim, keepdim, dtype=dtype)


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    if out is not None or not isinstance(p, torch.SymInt | torch.SymFloat):
        return torch_normalize(x, p, dim, eps, out)
    return x / vector_norm(x, p, dim, True).clamp_min(eps)


def power(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """With gradients: their formulas compare the exponent with 0, and take the logarithm of the base."""

    def call(first: Tensor | float, second: Tensor | float, **named: object) -> Tensor:
        tensor, number = (first, second) if isinstance(first, Tensor) else (second, first)
        if not (isinstance(tensor, Tensor) and tensor.requires_grad and torch.is_grad_enabled()):
            return function(first, second, **named)
        if tensor is first:
            return function(first, number * 1.0, **named)
        if isinstance(number, Tensor):
            return function(number.to(tensor.device), second, **named)
        return function(torch.scalar_tensor(number, dtype=tensor.dtype, device=tensor.device), second, **named)

    return call


def power_mean(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A pool of powers, of an order that changes."""

    def call(input: Tensor, norm_type: float, *args: object, **named: object) -> Tensor:
        return function(input, norm_type * 1.0, *args, **named)

    return call


def renorm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Its gradient is that of a norm, whose algorithm the order chooses."""

    def call(x: Tensor, p: float, *args: object, **named: object) -> Tensor:
        return function(x, float(p), *args, **named)

    return call


def rounded(x: Tensor, *, decimals: int = 0) -> Tensor:
    if x.dtype not in WIDE or not (0 < decimals < 10):
        return torch_round(x, decimals=int(decimals))
    scale = 10.0**decimals
    return (x * scale).round() / scale


def shaped(name: str) -> Callable[..., Tensor]:
    """`reshape` and `view`: for a -1, C++ asks whether the other sizes have elements; without them eager raises."""

    def call(x: Tensor, *shape: object, **named: object) -> Tensor:
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        sizes = [*cast(Sequence[int], given)]
        open_axes = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == -1]
        if len(open_axes) == 1 and not named:
            rest = math.prod([*sizes[: open_axes[0]], *sizes[open_axes[0] + 1 :]])
            if isinstance(rest, torch.SymInt) and not rest.node.has_hint():
                rest.node.ge(rest.node.wrap_int(1)).expect_true()
                sizes[open_axes[0]] = x.numel() // rest
                shape = (sizes,)
        made: Tensor = getattr(x, name)(*shape, **named)
        return made

    return call


def transform(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A transform of `n` elements where data decide `n`: C++ asks whether to cut the input or to pad it; both work."""

    def call(
        input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None
    ) -> Tensor:
        if not isinstance(n, torch.SymInt) or n.node.has_hint() or out is not None:
            return function(input, n, dim, norm, out=out)
        n.node.ge(n.node.wrap_int(1)).expect_true()
        kept = torch.sym_min(n, input.shape[dim])
        behind = input.dim() - 1 - dim % input.dim()
        whole = torch_pad(input.narrow(dim, 0, kept), [*[0, 0] * behind, 0, n - kept])
        return function(whole, None, dim, norm)

    return call


LP_POOLS = ("lp_pool1d", "lp_pool2d", "lp_pool3d")

NUMBER_CALLS: Mapping[Target, Callable[..., Tensor]] = {
    **{function: transform(function) for function in (torch.fft.fft, torch.fft.ifft, torch.fft.rfft)},
    torch.nn.functional.alpha_dropout: alpha_dropout,
    torch.normal: normal,
    "uniform_": uniform_,
    torch.linspace: linspace,
    torch.arange: arange,
    torch.nn.functional.one_hot: one_hot,
    torch.var: spread("var"),
    "var": spread("var"),
    torch.std: spread("std"),
    "std": spread("std"),
    torch.linalg.vector_norm: vector_norm,
    torch.norm: norm,
    "norm": norm,
    torch.nn.functional.normalize: normalize,
    **{function: power(function) for function in (torch.pow, operator.pow, operator.ipow)},
    **{function: power_mean(function) for function in map(partial(getattr, torch.nn.functional), LP_POOLS)},
    **{name: power(getattr(torch.Tensor, name)) for name in ("pow", "pow_", "__pow__", "__ipow__", "__rpow__")},
    torch.renorm: renorm(torch.renorm),
    "renorm": renorm(torch.Tensor.renorm),
    "renorm_": renorm(torch.Tensor.renorm_),
    torch.round: rounded,
    "round": rounded,
    torch.nn.functional.interpolate: interpolate,
    torch.tril_indices: tril_indices,
    torch.triu_indices: triu_indices,
    torch.reshape: shaped("reshape"),
    "reshape": shaped("reshape"),
    "view": shaped("view"),
}
