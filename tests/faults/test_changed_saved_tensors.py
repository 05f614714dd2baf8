"""Tensors that an `autograd.Function` saves and that are changed in place before its backward: eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager


class OfInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * ctx.saved_tensors[0].cos()


class OfResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * ctx.saved_tensors[0]


class AsAttribute(OfInput):
    """Which eager does not check."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x
        return x.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * ctx.x.cos()


def changed_input(y: Tensor) -> Tensor:
    result = OfInput.apply(y)
    y.add_(1)
    return result


def changed_result(y: Tensor) -> Tensor:
    return OfResult.apply(y).add_(1)


def changed_base(y: Tensor) -> Tensor:
    result = OfInput.apply(y[1:])
    y.mul_(2)
    return result


def changed_without_gradients(y: Tensor) -> Tensor:
    result = OfInput.apply(y)
    with torch.no_grad():
        y.add_(1)
    return result


def changed_attribute(y: Tensor) -> Tensor:
    result = AsAttribute.apply(y)
    y.add_(1)
    return result


def changed_copy(y: Tensor) -> Tensor:
    result = OfResult.apply(y)
    result.clone().add_(1)
    y.add_(1)
    return result


def gradient_before(y: Tensor) -> Tensor:
    result = OfInput.apply(y)
    (gradient,) = torch.autograd.grad(result.sum(), y)
    y.add_(1)
    return gradient


PROGRAMS = [
    changed_input, changed_result, changed_base, changed_without_gradients, changed_attribute, changed_copy,
    gradient_before,
]  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program: Callable[[Tensor], Tensor], inside: bool) -> None:
    def loss(x: Tensor) -> Tensor:
        result = program(x * 1)
        return torch.autograd.grad(result.sum(), x)[0] if inside and result.requires_grad else result

    compiled = kiln.compile(loss, options={"cache": False})

    def gradient(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        result = run(x.requires_grad_())
        return torch.autograd.grad(result.sum(), x)[0] if result.requires_grad else result

    for _ in range(2):
        assert_like_eager(lambda x: gradient(compiled, x), lambda x: gradient(loss, x), torch.ones(3))
