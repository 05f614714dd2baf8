"""Programs of a thousand ops: kernels of bounded depth, in which long functions are called."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest
import torch

import kiln
from tests.loops.compiled_plans import compiled_plans

SECONDS = 2.0
"""Of g++ for about a thousand ops, where it takes 0.4 alone; with all functions inlined it took 4.5."""


def long_functions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for step in range(143):
        y, x = x, ((x.sin() + y) * x - y).tanh().abs() + 0.1 * step
    return x


def short_functions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(330):
        x = torch.maximum(x * y + 1.5, x - y) * 0.5
    return x


@pytest.mark.parametrize("program", [long_functions, short_functions])
def test_a_thousand_ops(program: Callable[..., torch.Tensor]) -> None:
    x, y = torch.rand(1000), torch.rand(1000)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    compiled = kiln.compile(program, options={"cache": False})
    result = compiled(x, y)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    torch.testing.assert_close(result, program(x, y), rtol=1e-3, atol=1e-3)
    assert spent < SECONDS


def test_often_used_functions_are_called() -> None:
    """Few uses are inlined."""
    (plan,) = compiled_plans(long_functions, torch.rand(64), torch.rand(64))
    assert all("::sin(x...)" in kernel.source for kernel in plan.kernels)
    (plan,) = compiled_plans(lambda x: x.sin().tanh(), torch.rand(64))
    assert "::sin(x...)" not in plan.kernels[0].source


def test_slices_of_a_tensor_share_a_kernel() -> None:
    """Each had a kernel of its own, 500 of them 6 s of g++: the offset of a slice is an argument."""
    x = torch.rand(40, 64)
    program = lambda x: torch.cat([x[row : row + 1] * 2 for row in range(39, -1, -1)])  # noqa: E731
    (plan,) = compiled_plans(program, x)
    assert len(plan.kernels) <= 2
    torch.testing.assert_close(kiln.compile(program)(x), program(x))
