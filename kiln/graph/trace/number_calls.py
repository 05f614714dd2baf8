"""Functions whose C++ takes plain numbers and computes with them, in torch calls that take symbolic ones.

    torch.normal(0.0, sigma, (3,))     =>     torch.empty((3,)).normal_(0.0, sigma)

Only recorded calls with symbolic floats take these; the log keeps the call that the user wrote. The random numbers are
those that eager would draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.trace.log import Target

SELU_SLOPE = 1.7580993408473766
"""The negative saturation of SELU, as alpha_dropout has it."""


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    if not training or inplace or not 0 < p < 1:
        return torch.nn.functional.alpha_dropout(input, p, training, inplace)  # type: ignore[arg-type]
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
    out: Tensor | None = None,
    **options: object,
) -> Tensor:
    if size is None or out is not None or isinstance(mean, Tensor) or isinstance(std, Tensor):
        given = {"generator": generator, "out": out, **options}
        sized = () if size is None else (size,)
        made: Tensor = torch.normal(mean, std, *sized, **given)  # type: ignore[call-overload]
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
    if tensors or dtype not in (torch.float32, torch.float64) or type(steps) is not int or steps < 2:
        return torch.linspace(start, end, steps, **options)  # type: ignore[arg-type,call-overload,no-any-return]
    require_within(dtype, start, end)
    step = (end - start) / (steps - 1)
    up = torch.arange(steps, **{**options, "dtype": dtype})  # type: ignore[call-overload]
    made: Tensor = torch.where(up < steps // 2, up * step + start, end - (steps - 1 - up) * step)
    return made


def require_within(dtype: torch.dtype, *numbers: float | Tensor) -> None:
    """Eager converts these numbers, and refuses those out of range."""
    largest = torch.finfo(dtype).max
    if any([not isinstance(n, Tensor) and largest < abs(n) < math.inf for n in numbers]):
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")


NUMBER_CALLS: Mapping[Target, Callable[..., Tensor]] = {
    torch.nn.functional.alpha_dropout: alpha_dropout,
    torch.normal: normal,
    "uniform_": uniform_,
    torch.linspace: linspace,
}
