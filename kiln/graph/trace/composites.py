"""Functions of torch whose own C++ asks for plain sizes, in calls that take symbols.

matmul(x: f32[s0, s1, 64], w: f32[64, 32])    =>    x.reshape(-1, 64), mm, view(s0, s1, 32)
linear(x: f32[s0, s1, 64], w: f32[32, 64])    =>    matmul(x, w.t())

Torch 2.11 folds and expands a product in C++ by the numbers of its sizes; asked of a fake, that is a compile per size.
Only calls with symbolic sizes come here, and only in recording: the graph holds the call that the user wrote.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kiln.graph.trace.log import Target


def has_symbols(values: Sequence[Any]) -> bool:
    return any(isinstance(one, Tensor) and any(isinstance(size, torch.SymInt) for size in one.shape) for one in values)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """torch.matmul: `x` [*batch, n, k] with `y` [k], [k, m] or [*batch, k, m]; a vector `x` is a row."""
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


def _broadcast(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Of shapes that fit; asks of a symbol whether it is 1."""
    rank = max(len(one), len(other))
    long = [[1] * (rank - len(shape)) + list(shape) for shape in (one, other)]
    return [b if a == 1 else a for a, b in zip(*long, strict=True)]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear. With a bias torch folds by symbols itself."""
    if bias is not None or input.dim() <= 2:
        return torch.nn.functional.linear(input, weight, bias)
    return matmul(input, weight.t())


COMPOSITES: Mapping[Target, Callable[..., Any]] = {
    torch.matmul: matmul,
    operator.matmul: matmul,
    "matmul": matmul,
    "__matmul__": matmul,
    torch.nn.functional.linear: linear,
}
