"""Weights as directions and lengths: calls that eager refuses, or that make it read past the end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import kiln


def normed(v: Tensor, g: Tensor) -> Tensor:
    return torch._weight_norm_interface(v, g, 0)[0] + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_lengths_of_another_dtype_are_refused(dtype: torch.dtype) -> None:
    v, g = torch.ones(4, 3), torch.ones(4, 1, dtype=dtype)
    for function in (normed, kiln.compile(normed)):
        with pytest.raises(RuntimeError, match="expected scalar type"):
            function(v, g)


@pytest.mark.parametrize("sizes", [(5, 1), (4,), (4, 3), (1, 4, 1)])
def test_lengths_of_other_sizes_are_left_to_eager(sizes: tuple[int, ...]) -> None:
    """It reads as many as there are rows, wherever they are."""
    v, g = torch.rand(4, 3), torch.rand(sizes)
    compiled = kiln.compile(normed)
    torch.testing.assert_close(compiled(v, g), normed(v, g))
    assert compiled.report().breaks
