"""A region that drew random numbers before one of its checks failed: eager, which runs instead, draws the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout

import kiln


def scattered(x: Tensor, to: Tensor, of: Tensor) -> Tensor:
    y, z = dropout(x, 0.5, True), torch.zeros_like(x)
    z[to.nonzero().squeeze(-1)] = y[of.nonzero().squeeze(-1)]
    return z + dropout(x, 0.5, True)


def asserted(x: Tensor, to: Tensor, of: Tensor) -> Tensor:
    y = dropout(x, 0.5, True)
    if of.sum() < 2:
        raise ValueError("too few")
    return y * to.unsqueeze(-1)


@pytest.mark.parametrize("program", [scattered, asserted])
def test_eager_draws_the_same_numbers(program) -> None:
    x = torch.arange(1.0, 13).reshape(6, 2)
    compiled = kiln.compile(program, backend="eager")
    to = torch.tensor([1, 1, 0, 0, 1, 0])
    for of in (torch.tensor([0, 1, 1, 0, 0, 1]), torch.tensor([0, 0, 0, 0, 0, 1])):
        results = []
        for function in (compiled, program):
            torch.manual_seed(0)
            try:
                results.append(function(x, to, of))
            except ValueError as error:
                results.append(str(error))
            results.append(torch.rand(3))
        assert all(
            torch.equal(a, b) if isinstance(a, Tensor) else a == b
            for a, b in zip(results[:2], results[2:], strict=True)
        )
