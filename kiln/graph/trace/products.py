"""Products of matrices for symbolic sizes.

matmul(x: f32[s0, s1, 64], w: f32[64, 32])    =>    x.reshape(s0*s1, 64), mm, view(s0, s1, 32)
linear(x: f32[s0, s1, 64], w: f32[32, 64])    =>    matmul(x, w.t())

Torch 2.11 folds and expands products in C++ by plain sizes, which would specialise every symbol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch import bmm as torch_bmm
from torch import matmul as torch_matmul
from torch.nn.functional import linear as torch_linear

from kiln.graph.prims.meta.layout import is_canonical
from kiln.graph.trace.fake import FakeTensor


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """torch.matmul: `x` [*batch, n, k], `y` [k], [k, m] or [*batch, k, m]; a vector `x` is a row."""
    if x.dim() <= 2 and y.dim() <= 2:
        return torch_matmul(x, y)
    if y.dim() <= 2:
        return (x.reshape(math.prod(x.shape[:-1]), x.size(-1)) @ y).view(*x.shape[:-1], *y.shape[1:])
    if x.dim() == 1:
        return matmul(x.unsqueeze(0), y).squeeze(-2)
    batch = _broadcast(x.shape[:-2], y.shape[:-2])
    n, k, m = x.size(-2), x.size(-1), y.size(-1)
    count = math.prod(batch)  # not -1, which is ambiguous where another size is 0
    left = x.expand(*batch, n, k).reshape(count, n, k)
    right = y.expand(*batch, y.size(-2), m).reshape(count, y.size(-2), m)
    return torch_bmm(left, right).view(*batch, n, m)


def _broadcast(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Of compatible shapes."""
    rank = max(len(left), len(right))
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in (left, right)]
    return [_common(a, b) for a, b in zip(*padded, strict=True)]


def _common(a: int, b: int) -> int:
    """Of two compatible sizes; a symbol is compared with other symbols only."""
    if isinstance(a, int) and a == 1:
        return b
    if isinstance(b, int) and b == 1:
        return a
    return a if a == b or a != 1 else b


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear; with a bias and contiguous rows torch handles symbols itself, but not in `vmap`."""
    plain = bias is not None and all([isinstance(each, FakeTensor) for each in (input, weight, bias)])
    if input.dim() <= 2 or (plain and is_packed(input)):
        return torch_linear(input, weight, bias)
    product = matmul(input, weight.t())
    return product if bias is None else product + bias


def is_packed(x: Tensor) -> bool:
    """Whether the strides of a fake are those of a contiguous tensor, whatever the sizes."""
    return isinstance(x, FakeTensor) and is_canonical(x.storage_view.spec.sizes, x.storage_view.spec.strides)
