"""Products of a sparse matrix, given by its parts, and a dense one, with the gradient of the dense one.

product(parts, rows, columns, "coo", coalesced, False, x)     kiln_sparse.mm, whose gradient is that of the transpose
made_product(indices, values, rows, columns, ..., x)          the same, and the values have gradients, too
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor

from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.mutating import OWN_FAKES
from kiln.plan.sparse_operators import NAMESPACE

Matrix = tuple[tuple[Tensor, ...], int, int, str, bool]
"""Parts, rows, columns, layout, whether the indices are sorted and unique."""


def shape_of_product(
    parts: list[Tensor], rows: int, columns: int, layout: str, coalesced: bool, transposed: bool, x: Tensor
) -> Tensor:
    return x.new_empty((columns if transposed else rows, x.shape[1]))


OWN_FAKES[f"{NAMESPACE}::mm"] = shape_of_product


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


Where = tuple[Tensor, int, int, bool]
"""Indices, rows, columns, whether the indices are sorted and unique."""


class SavedMadeProduct(Protocol):
    """What the backward needs."""

    values: Tensor
    x: Tensor
    where: Where
    transposed: bool
    needs_input_grad: tuple[bool, ...]


class MadeProduct(torch.autograd.Function):
    """The values of the matrix are differentiated like `x`: an element has the product of a row of each."""

    @staticmethod
    def forward(ctx: SavedMadeProduct, values: Tensor, x: Tensor, where: Where, transposed: bool) -> Tensor:  # type: ignore[override]
        ctx.values, ctx.x, ctx.where, ctx.transposed = values, x, where, transposed
        indices, rows, columns, coalesced = where
        made: Tensor = torch.ops.kiln_sparse.mm([indices, values], rows, columns, "coo", coalesced, transposed, x)
        return made

    @staticmethod
    def backward(ctx: SavedMadeProduct, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled():  # eager's second derivatives are not those of the dense product
            raise UnsupportedOp(
                op="aten._sparse_mm", reason="products of a matrix that is made here have one derivative"
            )
        d_values: Tensor | None = None
        if ctx.needs_input_grad[0]:
            to, start = ctx.where[0].unbind(0)[:: -1 if ctx.transposed else 1]
            d_values = (gradient.index_select(0, to) * ctx.x.index_select(0, start)).sum(1)
        d_x = (
            MadeProduct.apply(ctx.values, gradient, ctx.where, not ctx.transposed) if ctx.needs_input_grad[1] else None
        )
        return d_values, cast("Tensor | None", d_x), None, None


def made_product(
    indices: Tensor, values: Tensor, rows: int, columns: int, coalesced: bool, transposed: bool, x: Tensor
) -> Tensor:
    """The matrix with these elements, or its transpose, by `x`, which has one or two dimensions."""
    if type(x) is not FakeTensor:  # a replay, for second derivatives
        matrix = torch.sparse_coo_tensor(indices, values, (rows, columns))
        return (matrix.t() if transposed else matrix) @ x
    where = indices, rows, columns, coalesced
    made = cast(Tensor, MadeProduct.apply(values, x if x.dim() == 2 else x[:, None], where, transposed))
    return made if x.dim() == 2 else made[:, 0]


def dense_matrix(indices: Tensor, values: Tensor, rows: int, columns: int, transposed: bool) -> Tensor:
    place = indices[0] * columns + indices[1]
    made = values.new_zeros(rows * columns).index_add(0, place, values).view(rows, columns)
    return made.t().contiguous() if transposed else made


def elements(x: Tensor) -> tuple[Tensor, Tensor]:
    """The places and values of what is not zero in a matrix."""
    places = x.detach().nonzero().t()
    return places, x[places[0], places[1]]
