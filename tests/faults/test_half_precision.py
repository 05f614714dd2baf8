"""Products and quotients of 16-bit tensors and numbers: the number was rounded to 16 bits before it was used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor | list[torch.Tensor]]] = {
    "mul": lambda x: x * 0.1,
    "div": lambda x: x / 3.3333,
    "in place": lambda x: x.clone().mul_(0.1).div_(0.7),
    "rank 0": lambda x: x * torch.tensor(0.1),
    "rank 0 integer": lambda x: x / torch.tensor(2049),
    "rank 0 first": lambda x: torch.tensor(0.1) * x,
    "exact": lambda x: x * 0.5 / 4,
    "radians": torch.deg2rad,
    "chain": lambda x: (x * 0.1 + 1e-3) * 1.7 - x / 0.3,
    "other ops": lambda x: torch.fmod(x, 0.1) + torch.rsub(x, 0.3) + (x > 0.1) + x.clamp(min=0.1),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_number_is_not_rounded_first(dtype: torch.dtype) -> None:
    x = torch.linspace(-4, 4, 1001).to(dtype)

    def program(x: torch.Tensor) -> list[torch.Tensor | list[torch.Tensor]]:
        return [function(x) for function in PROGRAMS.values()]

    compiled = kiln.compile(program, options={"numerics": "rounded"})(x)
    for name, expected, result in zip(PROGRAMS, program(x), compiled, strict=True):
        assert torch.equal(result, expected), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_nor_is_a_number_that_changes(dtype: torch.dtype) -> None:
    """It becomes an input."""
    compiled = kiln.compile(lambda x, factor: x * factor, options={"numerics": "rounded"})
    x = torch.linspace(-4, 4, 1001).to(dtype)
    for factor in (0.1, 0.3, 0.7):
        assert torch.equal(compiled(x, factor), x * factor)


def scanned_and_moved(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask = x.logical_not()
    sums = x.cumsum(0)
    return mask, sums, sums.masked_fill(mask, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("program", [scanned_and_moved, lambda x: scanned_and_moved(x.take(torch.tensor([0, 1, 3])))])
def test_what_a_scan_writes_is_no_bits(program: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([-1.0, -1.0, 0.0, 2.0], dtype=dtype)
    for result, expected in zip(kiln.compile(program)(x), program(x), strict=True):
        assert torch.equal(result, expected)
