"""Reductions.

aten.mean.dim(x, [1], keepdim=True)     =>     %1 = sum(x, axes=(1,));  %2 = div(%1, n);  %3 = unsqueeze(%2, axis=1)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import decompose
from kiln.graph.ops.sizes import axes_of

Dims = Sequence[int] | int | None


def keep(e: Emit, y: Node, axes: tuple[int, ...], keepdim: bool) -> Node:
    """Reduced dimensions put back with size 1."""
    if keepdim:
        for axis in axes:
            y = e.node("unsqueeze", y, axis=axis)
    return y


@decompose("sum.default", "sum.dim_IntList")
def sum_(e: Emit, x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Node:
    own = x.tensor.dtype
    wanted = dtype or (own if own.is_floating_point or own.is_complex else torch.int64)
    axes = axes_of(dim, x.tensor.rank, empty_is_all=True)
    return keep(e, e.node("sum", e.convert(x, wanted), axes=axes), axes, keepdim)
