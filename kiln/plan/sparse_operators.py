"""Products of a sparse matrix and a dense one as an operator of a plan, whose arguments are the parts of the matrix.

kiln_sparse.mm([indices, values], rows, columns, "coo", coalesced, transposed, x)      torch.sparse.mm(a, x)
kiln_sparse.mm([crow, column, values], rows, columns, "csr", False, True, x)           torch.sparse.mm(a.t(), x)

The matrix is put together again without copying, and eager's kernel runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NAMESPACE = "kiln_sparse"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
LIBRARY.define(
    "mm(Tensor[] parts, SymInt rows, SymInt columns, str layout, bool coalesced, bool transposed, Tensor x) -> Tensor"
)


def mm(
    parts: Sequence[Tensor], rows: int, columns: int, layout: str, coalesced: bool, transposed: bool, x: Tensor
) -> Tensor:
    if layout == "coo":
        matrix = torch.ops.aten._sparse_coo_tensor_unsafe(*parts, (rows, columns), is_coalesced=coalesced)
    else:
        matrix = torch.ops.aten._sparse_csr_tensor_unsafe(*parts, (rows, columns))
    made: Tensor = torch.sparse.mm(matrix.t() if transposed else matrix, x)
    return made


LIBRARY.impl("mm", mm, "CompositeExplicitAutograd")
