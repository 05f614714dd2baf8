"""The table of exact conversions, checked on values: all of them, or those at the ends of each power of two."""

from __future__ import annotations

import pytest
import torch

from kiln.graph.passes.arithmetic import EXACT_IN, through
from kiln.tensor.spec import TensorSpec

DTYPES = tuple(EXACT_IN)


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.uint8).view(dtype)
    if dtype.itemsize == 2:
        every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        return every[every.isfinite()] if dtype.is_floating_point else every
    if dtype.is_floating_point:
        mantissa, exponents = torch.finfo(dtype).eps, range(-140, 128)
        return torch.tensor([sign * 2.0**n * (1 + mantissa) for n in exponents for sign in (1, -1)], dtype=dtype)
    top = dtype.itemsize * 8 - 1
    return torch.tensor(
        [sign * 2**n + near for n in range(top) for sign in (1, -1) for near in (-1, 0, 1)], dtype=dtype
    )


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_a_conversion_is_exact_if_the_table_says_so(source: torch.dtype, target: torch.dtype) -> None:
    x = values(source)
    exact = x.tolist() == x.to(target).tolist()
    assert (target in EXACT_IN[source]) == exact


def test_a_detour_through_an_inexact_dtype_stays() -> None:
    wide = TensorSpec(torch.int16, (3,), (1,))
    assert through(wide, torch.float16, torch.float32) is None
    assert through(wide, torch.float32, torch.float16) is torch.float16
