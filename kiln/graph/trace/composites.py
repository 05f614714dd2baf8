"""Functions whose C++ reads sizes as plain integers, rewritten for symbolic sizes.

matmul(x: f32[s0, s1, 64], w: f32[64, 32])    =>    x.reshape(-1, 64), mm, view(s0, s1, 32)
linear(x: f32[s0, s1, 64], w: f32[32, 64])    =>    matmul(x, w.t())

Torch 2.11 folds and expands products in C++ by plain sizes, which would specialise every symbol. Only recorded calls
with symbolic sizes take these; the log keeps the call that the user wrote.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kiln.graph.trace.gradients import gradients
from kiln.graph.trace.log import Target


def has_symbols(values: Sequence[object]) -> bool:
    tensors = [value for value in values if isinstance(value, Tensor)]
    return any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """torch.matmul: `x` [*batch, n, k], `y` [k], [k, m] or [*batch, k, m]; a vector `x` is a row."""
    if x.dim() <= 2 and y.dim() <= 2:
        return torch.matmul(x, y)
    if y.dim() <= 2:
        return (x.reshape(-1, x.size(-1)) @ y).view(*x.shape[:-1], *y.shape[1:])
    if x.dim() == 1:
        return matmul(x.unsqueeze(0), y).squeeze(-2)
    batch = _broadcast(x.shape[:-2], y.shape[:-2])
    n, k, m = x.size(-2), x.size(-1), y.size(-1)
    left = x.expand(*batch, n, k).reshape(-1, n, k)
    right = y.expand(*batch, y.size(-2), m).reshape(-1, y.size(-2), m)
    return torch.bmm(left, right).view(*batch, n, m)


def _broadcast(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Of compatible shapes; decides for each symbol whether it is 1."""
    rank = max(len(left), len(right))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in (left, right)]
    return [b if a == 1 else a for a, b in zip(*padded, strict=True)]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear; with a bias torch handles symbols itself."""
    if bias is not None or input.dim() <= 2:
        return torch.nn.functional.linear(input, weight, bias)
    return matmul(input, weight.t())


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """torch.nn.functional.one_hot, which looks at the classes in eager only."""
    if num_classes > 0 and x.device.type == "cpu":
        inside = ((x >= 0) & (x < num_classes)).all()
        torch._assert_async(inside, f"one_hot: class values must be at least 0 and less than {num_classes}")
    return torch.nn.functional.one_hot(x, num_classes)


CHECKED: Mapping[Target, Callable[..., object]] = {
    torch.nn.functional.one_hot: one_hot,
    torch.autograd.grad: gradients,
}
"""Recorded as these whatever their sizes."""

COMPOSITES: Mapping[Target, Callable[..., Tensor]] = {
    torch.matmul: matmul,
    operator.matmul: matmul,
    "matmul": matmul,
    "__matmul__": matmul,
    torch.nn.functional.linear: linear,
}
