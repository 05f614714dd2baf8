"""Second derivatives through hooks and autograd functions whose backward is not linear in gradients.

In eager such a backward runs once, on the sum of what arrives: compiled, a sum of two runs would be another value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Results = tuple[Tensor, ...]
Program = Callable[[Tensor, Tensor], Results]
Ask = Callable[[Results, list[Tensor], list[Tensor]], list[Tensor]]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * g * ctx.saved_tensors[0]


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g / (g.norm() + 1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, 3 * g, torch.zeros_like(g)) * x.cos()


def through_a_function(x: Tensor, w: Tensor) -> Results:
    inner = Squared.apply(x)
    return inner.sin(), (inner * w).cos()


def in_a_row(x: Tensor, w: Tensor) -> Results:
    for _ in range(2):
        x = (Normalised.apply(x * w)).tanh()
    return x, x * w


def by_a_hook(x: Tensor, w: Tensor) -> Results:
    inner = x * w
    inner.register_hook(lambda g: g.clamp(-0.5, 0.5) * g.norm())
    return inner.sin(), inner.cos() * w


def linear(x: Tensor, w: Tensor) -> Results:
    inner = Scaled.apply(x * w)
    inner.register_hook(lambda g: g * 0.5)
    return inner.sin(), inner * w


def of_all(results: Results, inputs: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(results, inputs, tangents, create_graph=True))


def one_after_the_other(results: Results, inputs: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    return [
        gradient
        for result, tangent in zip(results, tangents, strict=True)
        for gradient in torch.autograd.grad(result, inputs[0], tangent, create_graph=True)
    ]


def beside_the_result(results: Results, inputs: list[Tensor], tangents: list[Tensor]) -> list[Tensor]:
    """A gradient penalty."""
    return [results[0], *torch.autograd.grad(results, inputs, tangents, create_graph=True)]


def derivatives(program: Program, ask: Ask) -> list[Tensor]:
    """Of second and third order, in several calls of equal layouts."""
    found: list[Tensor] = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        values = [torch.randn(3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(4)]
        inputs, tangents = values[:2], values[2:]
        asked = ask(program(*inputs), inputs, tangents)
        loss = sum(((number + 1) * value.square()).sum() for number, value in enumerate(asked))
        second = torch.autograd.grad(loss, values, create_graph=True)
        third = torch.autograd.grad(sum(value.square().sum() for value in second), values)
        found += [*[value.detach() for value in (*asked, *second)], *third]
    return found


NONLINEAR = [through_a_function, in_a_row, by_a_hook]


@pytest.mark.parametrize("ask", [of_all, one_after_the_other, beside_the_result])
@pytest.mark.parametrize("dynamic", [None, True])
def test_linear_backwards(ask: Ask, dynamic: bool | None) -> None:
    torch.testing.assert_close(derivatives(kiln.compile(linear, dynamic=dynamic), ask), derivatives(linear, ask))


@pytest.mark.parametrize("program", NONLINEAR)
@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_gradients(program: Program, dynamic: bool | None) -> None:
    torch.testing.assert_close(
        derivatives(kiln.compile(program, dynamic=dynamic), of_all), derivatives(program, of_all)
    )


@pytest.mark.parametrize("program", NONLINEAR)
@pytest.mark.parametrize("ask", [one_after_the_other, beside_the_result])
def test_sums_of_gradients_are_refused(program: Program, ask: Ask) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)KILN4008.*two ways"):
        derivatives(kiln.compile(program), ask)


def test_inside_nothing_is_refused() -> None:
    def step(x: Tensor, w: Tensor) -> Results:
        results = through_a_function(x, w)
        (slope,) = torch.autograd.grad([result.sum() for result in results], x, create_graph=True)
        return torch.autograd.grad((slope**2).sum() + results[0].sum(), (x, w))

    arguments = [torch.randn(3).requires_grad_() for _ in range(2)]
    torch.testing.assert_close(kiln.compile(step, fullgraph=True)(*arguments), step(*arguments))
