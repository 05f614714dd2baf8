"""Products for symbolic sizes.

matmul(x: f32[s0, s1, 64], w: f32[64, 32])    =>    x.reshape(s0*s1, 64), mm, view(s0, s1, 32)
linear(x: f32[s0, s1, 64], w: f32[32, 64])    =>    matmul(x, w.t())
einsum("...a,...b,...->...ab", x, y, z)       =>    in the order that is best for the sizes of this call

Torch 2.11 folds and expands products in C++ by plain sizes, which would specialise every symbol; so would the search
for the order of several products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch import bmm as torch_bmm
from torch import einsum as torch_einsum
from torch import matmul as torch_matmul
from torch.nn.functional import linear as torch_linear

from kiln.graph.prims.meta.layout import is_canonical
from kiln.graph.trace.fake import FakeTensor
from kiln.tensor.size_hint import SIZE_OF_DATA


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """torch.matmul: `input` [*batch, n, k], `other` [k], [k, m] or [*batch, k, m]; a vector `input` is a row."""
    x, y = input, other
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


def einsum(equation: str | Tensor, *given: Tensor) -> Tensor:
    """torch.einsum; eager asks the package `opt_einsum` for the order of three or more products, if there is one."""
    operands = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    finder = torch.backends.opt_einsum
    is_ordered = isinstance(equation, str) and len(operands) > 2 and finder.enabled and finder.is_available()
    if not is_ordered or not all(isinstance(x, Tensor) for x in operands):
        return torch_einsum(equation, *given)
    sizes = [tuple([size_in_this_call(size) for size in x.shape]) for x in operands]
    pairs = finder.get_opt_einsum().contract_path(equation, *sizes, shapes=True, optimize=finder.strategy)[0]
    path = list(itertools.chain.from_iterable(pairs))
    return cast(Tensor, torch._VF.einsum(equation, list(operands), path=path))  # type: ignore[attr-defined]


def size_in_this_call(size: int | torch.SymInt) -> int:
    """Without a guard, for a choice by which results differ in rounding only; large where data decide."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return SIZE_OF_DATA if hint is None else int(hint)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """torch.kron, whose C++ reads plain sizes."""
    x, y = input, other
    rank = max(x.dim(), y.dim())
    left, right = ([*[1] * (rank - z.dim()), *z.shape] for z in (x, y))
    spread = x.reshape([part for size in left for part in (size, 1)]) * y.reshape(
        [part for size in right for part in (1, size)]
    )
    return spread.reshape([a * b for a, b in zip(left, right, strict=True)])
