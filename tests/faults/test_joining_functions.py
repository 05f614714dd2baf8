"""An autograd function with several results, of which a loss uses some: its other arguments got None for zeros, and a
gradient that is not computed from those that arrive was there without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import kiln


class Doubled(Function):
    @staticmethod
    def forward(ctx: Any, *xs: Tensor) -> Any:
        return tuple([x * 2 for x in xs])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return tuple([gradient * 2 for gradient in gradients])


class Swapped(Function):
    """Its gradients are the tensors that it gets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        return y.clone(), x.clone()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Any:  # type: ignore[override]
        return second, first


class Bent(Function):
    """Its gradients are not linear, one is constant, and one is None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, z: Tensor) -> Any:
        ctx.save_for_backward(x)
        return x * y, y * z, z.sum()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor, third: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return first.cos() + third, torch.full_like(x, 3.0), None


class Constant(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return torch.ones_like(gradient)


def doubled(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return Doubled.apply(x * 3, y, z)  # type: ignore[no-any-return]


def swapped(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    first, second = Swapped.apply(x, y)
    return first.sum(), second * 2, (first + second).sum(), x + z


def bent(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    first, second, third = Bent.apply(x, y, z)
    return first, second.exp(), third, z * 2


def constant(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return Constant.apply(x), y * x, z.sum()


def hooked(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    h.register_hook(lambda gradient: torch.ones_like(gradient))
    return h.sin(), y * x, z + 1


@torch.library.custom_op("kiln_joining::bent", mutates_args=())
def bent_operator(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x * y, y * z, z.sum()


@bent_operator.register_fake
def _(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(y), z.new_empty(())


def save_first(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0])


bent_operator.register_autograd(Bent.backward, setup_context=save_first)


def custom_operator(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    first, second, third = bent_operator(x, y, z)
    return first, second.exp(), third * 2


def gradients(function: Any, losses: tuple[int, ...], size: int = 3) -> list[Tensor | None]:
    given = [torch.linspace(start, 1.0, size, requires_grad=True) for start in (0.1, 0.2, 0.3)]
    results = function(*given)
    sum(results[number].sum() for number in losses).backward()
    return [x.grad for x in given]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [doubled, swapped, bent, constant, hooked, custom_operator])
def test_some_of_the_results(program: Any, dynamic: bool | None) -> None:
    compiled = kiln.compile(program, fullgraph=True, dynamic=dynamic)
    for losses in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
        for size in (3, 5):
            torch.testing.assert_close(gradients(compiled, losses, size), gradients(program, losses, size))


def test_one_loss_of_all_results() -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor]:
        made = doubled(x, y, z)
        return (made[0].sum() + made[1].sum(),)

    compiled = kiln.compile(program, fullgraph=True)
    torch.testing.assert_close(gradients(compiled, (0,)), gradients(program, (0,)))
