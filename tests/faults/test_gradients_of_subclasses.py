"""`.grad` of leaves whose class derives from Tensor or Parameter, with the backward inside of the compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln


class Tagged(torch.Tensor):
    """The `__torch_function__` of torch."""


class Plain(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Scale(nn.Parameter):
    pass


Step = Callable[[Tensor], Any]


def leaf(cls: type[Tensor]) -> Tensor:
    values = torch.linspace(-1, 1, 4)
    return cls(values) if cls is Scale else torch.Tensor._make_subclass(cls, values, True)


def loss(w: Tensor, x: Tensor) -> Tensor:
    return ((x @ w).sin() * w).sum()


def set_to_none(w: Tensor) -> Step:
    def step(x: Tensor) -> Tensor | None:
        w.grad = None
        loss(w, x).backward()
        return w.grad

    return step


def accumulated(w: Tensor) -> Step:
    def step(x: Tensor) -> Tensor:
        loss(w, x).backward()
        assert w.grad is not None
        return w.grad * 2

    return step


def zeroed(w: Tensor) -> Step:
    def step(x: Tensor) -> None:
        if w.grad is not None:
            w.grad.zero_()
        loss(w, x).backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.1)  # type: ignore[arg-type]

    return step


def changed_in_place(w: Tensor) -> Step:
    def step(x: Tensor) -> Tensor:
        w.grad = None
        loss(w, x).backward()
        with torch.no_grad():
            grad = w.grad
            assert grad is not None
            grad.add_(w, alpha=0.5)
            w.copy_(w - 0.1 * grad)
        return grad

    return step


def by_an_optimizer(w: Tensor) -> Step:
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        value = loss(w, x)
        value.backward(inputs=[w])
        optimizer.step()
        return value.detach()

    return step


STEPS = [set_to_none, accumulated, zeroed, changed_in_place, by_an_optimizer]


@pytest.mark.parametrize("cls", [Tagged, Plain, Scale])
@pytest.mark.parametrize("program", STEPS, ids=lambda program: program.__name__)
def test_steps_on_leaves_of_subclasses(program: Callable[[Tensor], Step], cls: type[Tensor]) -> None:
    ours, eagers = leaf(cls), leaf(cls)
    compiled, eager = kiln.compile(program(ours), fullgraph=True, options={"cache": False}), program(eagers)
    for number in range(4):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(number))
        expected, result = eager(x), compiled(x)
        assert type(result) is type(expected) and type(ours.grad) is type(eagers.grad)
        pairs = [(ours, eagers), (ours.grad, eagers.grad)] + ([] if expected is None else [(result, expected)])
        for value, other in pairs:
            assert value is not None and other is not None
            torch.testing.assert_close(value.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor))
    assert kiln.report_of(compiled).compiles <= 2 and not kiln.report_of(compiled).eager


def test_gradient_that_is_read_only_is_guarded() -> None:
    w = leaf(Plain)

    def has_gradient(x: Tensor) -> Tensor:
        return x + 1 if w.grad is None else x + w.grad

    compiled, x = kiln.compile(has_gradient, options={"cache": False}), torch.zeros(4)
    assert torch.equal(compiled(x), torch.ones(4))
    w.grad = torch.full((4,), 5.0)
    assert torch.equal(compiled(x), w.grad)
    w.grad = None
    assert torch.equal(compiled(x), torch.ones(4))
