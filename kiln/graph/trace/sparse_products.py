"""Products of a sparse matrix, given by its parts, and a dense one, with the gradient of the dense one.

product(parts, rows, columns, "coo", coalesced, False, x)     kiln_sparse.mm, whose gradient is that of the transpose
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor

from kiln.plan.sparse_operators import LIBRARY, NAMESPACE

Matrix = tuple[tuple[Tensor, ...], int, int, str, bool]
"""Parts, rows, columns, layout, whether the indices are sorted and unique."""


def shape_of_product(
    parts: list[Tensor], rows: int, columns: int, layout: str, coalesced: bool, transposed: bool, x: Tensor
) -> Tensor:
    return x.new_empty((columns if transposed else rows, x.shape[1]))


torch.library.register_fake(f"{NAMESPACE}::mm", shape_of_product, lib=LIBRARY)


class SavedMatrix(Protocol):
    """What the backward needs."""

    transposed: bool
    matrix: Matrix


class SparseProduct(torch.autograd.Function):
    """`x` is differentiated, the matrix is not."""

    @staticmethod
    def forward(ctx: SavedMatrix, x: Tensor, transposed: bool, matrix: Matrix) -> Tensor:  # type: ignore[override]
        ctx.transposed, ctx.matrix = transposed, matrix
        parts, rows, columns, layout, coalesced = matrix
        made: Tensor = torch.ops.kiln_sparse.mm(parts, rows, columns, layout, coalesced, transposed, x)
        return made

    @staticmethod
    def backward(ctx: SavedMatrix, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return cast(Tensor, SparseProduct.apply(gradient, not ctx.transposed, ctx.matrix)), None, None


def product(matrix: Matrix, transposed: bool, x: Tensor) -> Tensor:
    """`matrix @ x`, or that of the transposed matrix; `x` has one or two dimensions."""
    made = cast(Tensor, SparseProduct.apply(x if x.dim() == 2 else x[:, None], transposed, matrix))
    return made if x.dim() == 2 else made[:, 0]
