"""The places in a triangle of a matrix whose sides are one symbol: torch counts them by plain sizes.

    triu_indices(s0, s0, 1)    =>    i64[2, s0*(s0 - 1)//2], computed from the numbers of the places

The k-th place of a lower triangle is in row r where r*(r + 1)/2 <= k; an upper triangle is a lower one from its end.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch import combinations as torch_combinations
from torch import tril_indices as torch_tril_indices
from torch import triu_indices as torch_triu_indices


def is_square(row: int, col: int) -> bool:
    sides: tuple[object, object] = (row, col)
    return all(isinstance(side, torch.SymInt) for side in sides) and row.node.value == col.node.value  # type: ignore[attr-defined]


def triangle(rows: int, device: torch.device | str | None) -> tuple[Tensor, Tensor, Tensor]:
    """Of each place in a lower triangle of so many rows its number, row and column."""
    number = torch.arange(rows * (rows + 1) // 2, device=device)
    row = ((8.0 * number.double() + 1.0).sqrt() - 1.0).div(2.0).floor().long()
    return number, row, number - row * (row + 1) // 2


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    device: torch.device | str | None = None, pin_memory: bool | None = None,
) -> Tensor:  # fmt: skip
    if not is_square(row, col) or offset > 0 or dtype not in (None, torch.long) or row <= -offset:
        named = {"dtype": dtype or torch.long, "layout": layout, "device": device, "pin_memory": pin_memory}
        return torch_tril_indices(row, col, offset, **named)  # type: ignore[arg-type]
    _, rows, columns = triangle(row + offset, device)
    return torch.stack([rows - offset, columns])


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, layout: torch.layout | None = None,
    device: torch.device | str | None = None, pin_memory: bool | None = None,
) -> Tensor:  # fmt: skip
    if not is_square(row, col) or offset < 0 or dtype not in (None, torch.long) or row <= offset:
        named = {"dtype": dtype or torch.long, "layout": layout, "device": device, "pin_memory": pin_memory}
        return torch_triu_indices(row, col, offset, **named)  # type: ignore[arg-type]
    _, rows, columns = triangle(row - offset, device)
    return torch.stack([row - offset - 1 - rows, row - 1 - columns]).flip(1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    if input.dim() != 1 or r != 2:
        return torch_combinations(input, r, with_replacement)
    first, second = triu_indices(input.size(0), input.size(0), 0 if with_replacement else 1, device=input.device)
    return torch.stack([input[first], input[second]], -1)
