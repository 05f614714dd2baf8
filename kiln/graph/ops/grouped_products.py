"""Products of groups of rows with a matrix each, as in mixtures of experts: ATen calls with predicted results.

aten._grouped_mm(x: bf16[s0, 64], w: bf16[8, 64, 32], offs: i32[8])     =     bf16[s0, 32]

`offs` are the ends of the groups. They divide the rows of x, the columns of y, or the axis that is contracted:

    x [rows, k]          y [groups, k, columns]        [rows, columns]
    x [groups, rows, k]  y [k, columns]                [rows, columns]
    x [rows, k]          y [k, columns]                [groups, rows, columns]
    x [groups, rows, k]  y [groups, k, columns]        [groups, rows, columns], without `offs`
"""

from __future__ import annotations

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import library
from kiln.graph.ops.sizes import matching_sizes
from kiln.symbolic import ceil_div
from kiln.tensor.spec import TensorSpec

ALIGNMENT = 16
"""Bytes between rows of the result, of which the kernel stores whole multiples."""


@library("_grouped_mm.default")
def grouped_mm(
    e: Emit, x: Node, y: Node, offs: Node | None = None, bias: Node | None = None,
    out_dtype: torch.dtype | None = None,
) -> TensorSpec:  # fmt: skip
    left, right = x.tensor, y.tensor
    if left.rank not in (2, 3) or right.rank not in (2, 3) or left.dtype is not right.dtype:
        raise RuntimeError(f"_grouped_mm: expected two or three dimensions of one dtype, got {left} and {right}")
    if not matching_sizes(e, left.sizes[-1:], right.sizes[-2:-1]):
        raise RuntimeError(f"_grouped_mm: contraction dimension of {left} and {right} does not match")
    if (offs is None) != (left.rank == right.rank == 3):
        raise RuntimeError("_grouped_mm: offsets are needed where an operand has two dimensions, and only there")
    groups = [spec.sizes[:1] for spec in (left, right) if spec.rank == 3]
    if offs is not None:
        if offs.tensor.rank != 1 or offs.tensor.dtype is not torch.int32:
            raise RuntimeError(f"_grouped_mm: offsets have to be a vector of int32, got {offs.tensor}")
        groups.append(offs.tensor.sizes)
    if not all([matching_sizes(e, groups[0], other) for other in groups]):
        raise RuntimeError(f"_grouped_mm: the numbers of groups in {left} and {right} do not match")
    sizes = (left.sizes[-2], right.sizes[-1])
    dtype = left.dtype if out_dtype is None else out_dtype
    whole = ALIGNMENT // dtype.itemsize
    row = ceil_div(sizes[1], whole) * whole
    if left.rank != right.rank:
        return left.with_dtype(dtype).with_view(sizes, (row, 1), 0)
    return left.with_dtype(dtype).with_view((*groups[0], *sizes), (sizes[0] * row, row, 1), 0)
