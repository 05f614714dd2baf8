"""A tensor that is read twice for a size gives one size, so that products of what was made with it fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def a_tensor(x: Tensor, n: Tensor) -> Tensor:
    return x.new_ones(4, n, 3).transpose(1, 2) @ x.narrow(1, 0, n).reshape(4, n, -1)


def its_maximum(x: Tensor, n: Tensor) -> Tensor:
    return (torch.zeros(2, n.max()) + torch.ones(2, n.max().item())) @ x[0, : n.max()]


def changed_between(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    first = x.new_zeros(n)
    n.add_(1)
    return first, x.new_zeros(n)


def on_one_side(x: Tensor, n: Tensor) -> Tensor:
    part = x.narrow(1, 0, n).sum() if x.sum() > 0 else x.sum()
    return part + x.narrow(1, 0, n).mean()


@pytest.mark.parametrize("program", [a_tensor, its_maximum, changed_between, on_one_side])
def test_one_size(program: Callable[..., Any]) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for sign in (1, -1):
        for size in (3, 5):
            x = sign * torch.rand(4, 8, 5)
            torch.testing.assert_close(compiled(x, torch.tensor(size)), program(x, torch.tensor(size)))
