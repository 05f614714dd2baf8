"""`torch.autograd.grad` of many gradients at once, inside: a graph, with the gradients and the None of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln

Gradients = tuple[Tensor | None, ...]
grad = torch.autograd.grad


def jacobian(x: Tensor, w: Tensor) -> Gradients:
    y = torch.tanh(x @ w)
    rows = torch.eye(y.numel()).reshape(-1, *y.shape)
    return grad(y, x, rows, is_grads_batched=True)


def several(x: Tensor, w: Tensor) -> Gradients:
    y, z = torch.tanh(x @ w), (w**2).sum(0)
    return grad([y, z], [x, w], [torch.ones(4, *y.shape), torch.ones(4, 3)], is_grads_batched=True, create_graph=True)


def unused(x: Tensor, w: Tensor) -> Gradients:
    return grad((x.tanh(),), (x, w), (torch.ones(4, *x.shape),), is_grads_batched=True, allow_unused=True)


def filled(x: Tensor, w: Tensor) -> Gradients:
    return grad((x.tanh(),), (x, w), (torch.ones(4, *x.shape),), is_grads_batched=True, materialize_grads=True)


def second(x: Tensor, w: Tensor) -> Gradients:
    (first,) = grad((x**3 @ w).sum(), x, create_graph=True)
    return grad(first.flatten(), x, torch.eye(first.numel()), is_grads_batched=True)


def hessian(x: Tensor, w: Tensor) -> Gradients:
    return (torch.autograd.functional.hessian(lambda t: (t @ w).sin().sum(), x, vectorize=True),)


@pytest.mark.parametrize("function", [jacobian, several, unused, filled, second, hessian])
def test_one_graph_with_the_gradients_of_eager(function: Callable[[Tensor, Tensor], Gradients]) -> None:
    fast = kiln.compile(function, fullgraph=True, options={"cache": False})
    for size in (2, 3, 4):
        x, w = torch.randn(size, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        for mine, eager in zip(fast(x, w), function(x, w), strict=True):
            assert (mine is None) == (eager is None)
            if mine is not None and eager is not None:
                torch.testing.assert_close(mine, eager)
                assert mine.requires_grad == eager.requires_grad
