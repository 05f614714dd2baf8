"""Rows for tests of softmax: ordinary numbers, large ones, and every kind of row that has no finite sum."""

from __future__ import annotations

import torch
from torch import Tensor

INF = float("inf")
SPECIAL = 10
"""One row of each special kind; ordinary rows follow."""


def special_rows(dtype: torch.dtype, columns: int, rows: int = SPECIAL) -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(rows, columns)
    x[1] *= 60
    x[2] = torch.linspace(-80, 80, columns)  # the maximum grows in each turn
    x[3] = torch.linspace(80, -80, columns)
    x[4] = -INF
    x[5, :-1] = -INF
    x[6, 11] = INF
    x[7, columns // 2] = float("nan")
    x[8, : columns - 7] = -INF
    x[9, 3], x[9, 5] = -INF, torch.finfo(dtype).max
    return x.to(dtype)
