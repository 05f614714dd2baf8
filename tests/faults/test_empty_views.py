"""Where views begin that turn out to be empty, with sizes that change."""

from __future__ import annotations

import torch
from torch import Tensor

import kiln


def diagonals(x: Tensor) -> list[Tensor]:
    far = [x.diagonal(5 + x.shape[0]), x.diagonal(-9 - x.shape[0]), x.diagonal(x.shape[1])]
    return [*far, x.diagonal(2), x[1:].diagonal(3), x.diagonal(-1)]


def test_diagonals() -> None:
    compiled = kiln.compile(diagonals, dynamic=True)
    for size in (4, 5, 3, 2, 7, 1):
        x = torch.randn(size, size + 1)
        for result, expected in zip(compiled(x), diagonals(x), strict=True):
            assert torch.equal(result, expected)
            assert (result.stride(), result.storage_offset()) == (expected.stride(), expected.storage_offset())
