"""`torch.prod` and `torch.cumprod` with the gradients of eager, which asks whether there are zeros.

    y = x.prod(0)      no zeros:  grad * (y / x)
                       zeros:     grad * the product of the elements before x[i] * that of those behind it
                       x.prod() with two zeros or more:  0, unless the gradient is differentiated

Of fake tensors torch takes the second line always: with NaN or infinite elements it gives other numbers than the first.
For running products it looks for the first zero with operators that are many kernels; here it is a sum of zeros.
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


class RunningProduct(torch.autograd.Function):
    """The product of the elements up to each one along `axis`."""

    @staticmethod
    def forward(ctx: SavedProduct, x: Tensor, axis: int) -> Tensor:  # type: ignore[override]
        result = x.cumprod(axis)
        ctx.axis = axis
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: SavedProduct, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x, result = ctx.saved_tensors
        assert ctx.axis is not None
        if torch.is_grad_enabled():
            return torch.ops.aten.cumprod_backward(grad, x, ctx.axis, result), None
        return running_gradient(grad, x, result, ctx.axis), None


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_apply = super(torch.autograd.Function, MultipliedElements).apply
_apply_running = super(torch.autograd.Function, RunningProduct).apply


def gradient(grad: Tensor, x: Tensor, result: Tensor, axis: int, single: bool) -> Tensor:
    """`single`: all elements make one product."""
    is_zero = x == 0
    has_zeros = is_zero.any()
    quotient = result / torch.where(has_zeros, 1, x)
    others = before(x, axis) * before(x.flip(axis), axis).flip(axis)
    found = torch.where(has_zeros, grad * others, grad * quotient)
    return torch.where(is_zero.sum() > 1, 0, found) if single and not torch.is_grad_enabled() else found


def running_gradient(grad: Tensor, x: Tensor, result: Tensor, axis: int) -> Tensor:
    """In front of the first zero the sum of grad * result from the element on, by the element; at the zero the sum of
    grad * (the product without it) up to the second zero; 0 behind it."""
    if x.shape[axis] == 1:
        return grad
    is_zero = x == 0
    zeros = is_zero.cumsum(axis, dtype=torch.int32)
    in_front, behind_one = zeros == 0, zeros == 1
    parts = torch.where(in_front, grad * result, 0).flip(axis).cumsum(axis).flip(axis)
    others = torch.where(behind_one & ~is_zero, x, 1).cumprod(axis)
    at_zero = (torch.where(behind_one, grad, 0) * others).sum(axis, keepdim=True)  # inf * 0 is NaN in eager, too
    at_zero = at_zero * torch.where(in_front, x, 1).prod(axis, keepdim=True)
    return torch.where(in_front, parts / x, torch.where(behind_one & is_zero, at_zero, 0))


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


def cumprod(input: Tensor, *args: object, **kwargs: object) -> Tensor:
    """torch.cumprod."""
    given = {**dict(zip(("dim",), args, strict=False)), **kwargs}
    dim, dtype = given.get("dim"), given.get("dtype") or input.dtype
    expected = len(args) <= 1 and given.keys() <= {"dim", "dtype"} and type(dim) is int and dtype in FLOATS
    if not expected or not is_differentiated(input) or not -input.dim() <= cast(int, dim) < input.dim():
        return torch.cumprod(input, *args, **kwargs)  # type: ignore[arg-type]
    return cast(Tensor, _apply_running(input.to(dtype=cast(torch.dtype, dtype)), dim))


def is_differentiated(x: Tensor) -> bool:
    """Outside of transforms, which functions of autograd do not support here."""
    transformed = torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0
    wanted = x.requires_grad and torch.is_grad_enabled() and not transformed
    return wanted and type(x) is FakeTensor and x.dtype in FLOATS and x.dim() > 0
