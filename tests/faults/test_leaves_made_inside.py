"""Gradients for leaves that a region makes: `x.detach().requires_grad_()`, `torch.zeros(3, requires_grad=True)`.

A loss that `torch.autograd.grad` had differentiated kept a gradient function that raised an internal error.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def of_square(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x.detach().requires_grad_()
    loss = (v**2).sum()
    return torch.autograd.grad(loss, v)[0], loss


def of_zeros(x: Tensor) -> tuple[Tensor, Tensor]:
    v = torch.zeros(3, requires_grad=True)
    loss = ((v + x) ** 2).sum()
    return v - 0.1 * torch.autograd.grad(loss, v)[0], loss


@pytest.mark.parametrize("program", [of_square, of_zeros])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_freed_loss(program: Any, requires_grad: bool) -> None:
    x = torch.randn(3, requires_grad=requires_grad)
    compiled = kiln.compile(program)
    for (gradient, loss), expected in zip([compiled(x), compiled(x)], [program(x)] * 2, strict=True):
        torch.testing.assert_close((gradient, loss), expected)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
