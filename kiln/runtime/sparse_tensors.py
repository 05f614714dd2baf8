"""What guards and transformed code ask of a sparse tensor: its kind, the dense tensors that it consists of, itself."""

from __future__ import annotations

import torch
from torch import Tensor

Kind = tuple[str, ...] | tuple[()]


def kind(x: object) -> Kind:
    """All but sizes and values: layout, dtype, device, dimensions, whether its indices are sorted and unique."""
    if not isinstance(x, Tensor) or x.layout is torch.strided:
        return ()
    coalesced = x.layout is torch.sparse_coo and x.is_coalesced()
    shape = (x.dim(), x.sparse_dim(), x.dense_dim(), coalesced, x.requires_grad, x.is_inference())
    return (str(x.layout), str(x.dtype), str(x.device), *map(str, shape))


def rows(x: Tensor) -> int:
    return x.size(0)


def columns(x: Tensor) -> int:
    return x.size(1)


def indices(x: Tensor) -> Tensor:
    return x._indices()


def row_starts(x: Tensor) -> Tensor:
    return x.crow_indices()


def column_indices(x: Tensor) -> Tensor:
    return x.col_indices()


def values(x: Tensor) -> Tensor:
    return x._values() if x.layout is torch.sparse_coo else x.values()


PARTS = {torch.sparse_coo: (indices, values), torch.sparse_csr: (row_starts, column_indices, values)}
"""By layout."""


def made_matrix(places: Tensor, weights: Tensor, rows: int, columns: int, coalesced: bool) -> Tensor:
    return torch.sparse_coo_tensor(places, weights, (rows, columns), is_coalesced=coalesced or None)


def summed(x: Tensor) -> Tensor:
    return x.coalesce()
