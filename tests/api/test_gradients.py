"""Gradients of compiled functions where their number or order is not that of the inputs."""

from __future__ import annotations

import torch
from torch import Tensor

import kiln


def check(function, *inputs: Tensor) -> None:
    """Values and gradients of `function`, compiled and eager."""
    copies = [[one.detach().clone().requires_grad_(one.requires_grad) for one in inputs] for _ in range(2)]
    results = [
        made(*given) for made, given in zip((kiln.compile(function, fullgraph=True), function), copies, strict=True)
    ]
    for result in results:
        result.backward()
    torch.testing.assert_close(*results)
    for mine, theirs in zip(*copies, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_one_tensor_is_the_gradient_of_several_inputs() -> None:
    """Inputs without a gradient stand in between, so that gradients and inputs are counted differently."""

    def f(x: Tensor, a: Tensor, scale: Tensor, b: Tensor) -> Tensor:
        return (((x + a) + (x + b)).tanh() * scale).sum()

    check(f, torch.randn(3, 4), torch.randn(4, requires_grad=True), torch.randn(4), torch.randn(4, requires_grad=True))
