"""The start of a reduction is neutral: combined with any value it gives that value."""

from __future__ import annotations

import pytest
import torch

from kiln.loops.program.nodes import ReduceOp
from kiln.loops.program.reductions import COMBINE, reduce_start

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64)
LOGICAL = (ReduceOp.ANY, ReduceOp.ALL)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", COMBINE)
def test_start(op: ReduceOp, dtype: torch.dtype) -> None:
    if dtype is torch.bool:
        values = torch.tensor([False, True])
    elif dtype.is_floating_point:
        values = torch.tensor([-float("inf"), -2.5, 0.0, 1.0, float("inf")], dtype=dtype)
    else:
        values = torch.tensor([torch.iinfo(dtype).min, 0, 3, torch.iinfo(dtype).max], dtype=dtype)
    start = torch.full_like(values, reduce_start(op, dtype))
    expected = values != 0 if op in LOGICAL else values
    assert torch.equal(COMBINE[op](start, values).to(expected.dtype), expected)
