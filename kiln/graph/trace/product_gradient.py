"""`torch.prod` with the gradient of eager, which asks whether there are zeros.

    y = x.prod(0)      no zeros:  grad * (y / x)
                       zeros:     grad * the product of the elements before x[i] * that of those behind it
                       x.prod() with two zeros or more:  0, unless the gradient is differentiated

Of fake tensors torch takes the second line always: with NaN or infinite elements it gives other numbers than the first.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kiln.graph.trace.fake import FakeTensor


class SavedProduct(Protocol):
    """What the backward needs."""

    axis: int | None
    keepdim: bool
    saved_tensors: tuple[Tensor, Tensor]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class MultipliedElements(torch.autograd.Function):
    """The product of all elements, or of those along `axis`."""

    @staticmethod
    def forward(ctx: SavedProduct, x: Tensor, axis: int | None, keepdim: bool) -> Tensor:  # type: ignore[override]
        result = x.prod() if axis is None else x.prod(axis, keepdim)
        ctx.axis, ctx.keepdim = axis, keepdim
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: SavedProduct, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        x, result = ctx.saved_tensors
        if ctx.axis is None:
            flat = gradient(grad, x.reshape(-1), result, 0, single=True)
            return flat.view(x.shape), None, None
        if not ctx.keepdim:
            grad, result = grad.unsqueeze(ctx.axis), result.unsqueeze(ctx.axis)
        return gradient(grad, x, result, ctx.axis, single=False), None, None


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_apply = super(torch.autograd.Function, MultipliedElements).apply


def gradient(grad: Tensor, x: Tensor, result: Tensor, axis: int, single: bool) -> Tensor:
    """`single`: all elements make one product."""
    is_zero = x == 0
    has_zeros = is_zero.any()
    quotient = result / torch.where(has_zeros, 1, x)
    others = before(x, axis) * before(x.flip(axis), axis).flip(axis)
    found = torch.where(has_zeros, grad * others, grad * quotient)
    return torch.where(is_zero.sum() > 1, 0, found) if single and not torch.is_grad_enabled() else found


def before(x: Tensor, axis: int) -> Tensor:
    """For each element the product of those before it."""
    first, rest = x.narrow(axis, 0, 1), x.narrow(axis, 0, x.shape[axis] - 1)
    return torch.cat([torch.ones_like(first), rest], axis).cumprod(axis)


def prod(input: Tensor, *args: object, **kwargs: object) -> Tensor:
    """torch.prod."""
    if not kwargs.keys() <= {"dim", "keepdim", "dtype"} or len(args) > 2 or not is_differentiated(input):
        return torch.prod(input, *args, **kwargs)  # type: ignore[call-overload, no-any-return]
    given = {**dict(zip(("dim", "keepdim"), args, strict=False)), **kwargs}
    dim, keepdim, dtype = given.get("dim"), given.get("keepdim", False), given.get("dtype") or input.dtype
    valid = "dim" not in given or (type(dim) is int and -input.dim() <= dim < input.dim())
    if not valid or type(keepdim) is not bool or dtype not in FLOATS or input.numel() == 0:
        return torch.prod(input, *args, **kwargs)  # type: ignore[call-overload, no-any-return]
    return cast(Tensor, _apply(input.to(dtype=dtype), dim, keepdim))


def is_differentiated(x: Tensor) -> bool:
    """Outside of transforms, which functions of autograd do not support here."""
    transformed = torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0
    wanted = x.requires_grad and torch.is_grad_enabled() and not transformed
    return wanted and type(x) is FakeTensor and x.dtype in FLOATS and x.dim() > 0
