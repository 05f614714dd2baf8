"""What a program does: its result or exception, its arguments afterwards, gradients; and whether two outcomes agree."""

from __future__ import annotations

from typing import Any

import torch


def outcome(function: Any, args: tuple[Any, ...]) -> Any:
    """The result, or the class and text of the exception; the arguments as they are then; gradients of leaves."""
    torch.manual_seed(7)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    try:
        result = function(*args)
        wanted = isinstance(result, torch.Tensor) and result.requires_grad
        if wanted and any(tensor.requires_grad for tensor in tensors):
            result.sum().backward()
    except Exception as error:
        return type(error), str(error)
    return result, args, [tensor.grad for tensor in tensors if tensor.is_leaf]


def same(a: Any, b: Any) -> bool:
    """Whether values are equal, up to rounding, and of the same types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if a.dtype is not b.dtype or a.shape != b.shape or a.requires_grad != b.requires_grad:
            return False
        return torch.allclose(a.detach(), b.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a).__module__ == "numpy":
        return bool(a.dtype == b.dtype and a.shape == b.shape and (abs(a - b) < 1e-6).all())
    return abs(a - b) < 1e-5 if isinstance(a, float) else bool(a == b)
