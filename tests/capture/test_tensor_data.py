"""Assignments to `.data`, `.grad` and `.requires_grad`, and parameters made inside: as eager, for both back ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import kiln

OPTIONS = {"cache": False}
Program = Callable[[Any, Tensor], Any]


def doubles(w: Parameter, x: Tensor) -> Any:
    w.data = w.data * 2
    return w * x


def behind_its_use(w: Parameter, x: Tensor) -> Any:
    y = (w * x).sum()
    w.data = w.data * 2
    return y


def changed_in_place(w: Parameter, x: Tensor) -> Any:
    w.data = w.data * 2
    y = (w * x).sum()
    w.data.mul_(3)
    return y


def shares_an_argument(w: Parameter, x: Tensor) -> Any:
    w.data = x
    w.data.add_(1)
    return w + x


def longer(w: Parameter, x: Tensor) -> Any:
    w.data = torch.cat([w.data, x])
    return w * 2


def old_memory(w: Parameter, x: Tensor) -> Any:
    old = w.data
    w.data = x * 2
    old.add_(5)
    return old, w + 1


def views(w: Parameter, x: Tensor) -> Any:
    w.data = x * 1
    part = w[:2]
    w.data.mul_(2)
    return part * 2, w.data


def returned_twice(w: Parameter, x: Tensor) -> Any:
    w.data = x * 1
    return w.data, w.detach()


def set_twice(w: Parameter, x: Tensor) -> Any:
    w.data = x * 2
    w.data = w.data + 1
    return w


def of_another_dtype(w: Parameter, x: Tensor) -> Any:
    w.data = w.data.half()
    return w * 2


def before_a_break(w: Parameter, x: Tensor) -> Any:
    w.data = x * 2
    time.sleep(0)
    return w * 3


def descends(w: Parameter, x: Tensor) -> Any:
    with torch.no_grad():
        w.data = w - 0.1 * x
    return w.sum() * 2


def of_a_tensor_made_inside(w: Parameter, x: Tensor) -> Any:
    y = torch.ones(3)
    y.data = x * 2
    part = y[:2]
    y.data = x * 3
    return y, part


def gradient_set(w: Parameter, x: Tensor) -> Any:
    w.grad = x * 2
    return w.grad + 1


def gradient_dropped(w: Parameter, x: Tensor) -> Any:
    w.grad = None
    return w.grad is None, x + 1


def leaf(w: Parameter, x: Tensor) -> Any:
    y = x.detach().clone()
    y.requires_grad = True
    (y * y).sum().backward()
    return y.grad


def parameters(w: Parameter, x: Tensor) -> Any:
    p, q = Parameter(x * 2), Parameter(x, False)
    return p, q, isinstance(p, Parameter), q * 3


def parameter_and_break(w: Parameter, x: Tensor) -> Any:
    p = Parameter(x * 2)
    time.sleep(0)
    return p


def linear(w: Parameter, x: Tensor) -> Any:
    with torch.no_grad():
        layer = torch.nn.Linear(3, 3)
        layer.weight.fill_(1.0)
        layer.bias.zero_()
        return layer(x), layer.weight


BREAK = (of_another_dtype, before_a_break, parameter_and_break)
PROGRAMS: tuple[Program, ...] = (
    *(doubles, behind_its_use, changed_in_place, shares_an_argument, longer, old_memory, views, returned_twice),
    *(set_twice, descends, of_a_tensor_made_inside, gradient_set, gradient_dropped, leaf, parameters, linear, *BREAK),
)


def outcome(function: Program, needs_grad: bool) -> Any:
    """The results; then, with gradients from the first result and all results changed in place, the arguments."""
    torch.manual_seed(0)
    w, x = Parameter(torch.arange(3.0) + 1, needs_grad), torch.ones(3)
    made = function(w, x)
    made = made if isinstance(made, tuple) else (made,)
    if isinstance(made[0], Tensor) and made[0].grad_fn is not None:
        made[0].sum().backward()
    with torch.no_grad():
        for result in made:
            if isinstance(result, Tensor):
                result.add_(1)
    return made, (w, x, w.grad), w.data_ptr() == x.data_ptr()


def text(value: object) -> object:
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.tolist(), value.requires_grad, value.is_leaf
    return tuple(map(text, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("function", PROGRAMS)
def test_as_eager(function: Program) -> None:
    for backend in ("eager", "kiln"):
        for needs_grad in (False, True):
            keywords: Any = {} if backend == "kiln" else {"backend": backend}
            compiled = kiln.compile(function, options=OPTIONS, **keywords)
            expected = text(outcome(function, needs_grad))
            for _ in range(2):
                assert text(outcome(compiled, needs_grad)) == expected
            unusual = function in BREAK or (needs_grad and function in (longer, leaf))
            assert unusual or compiled.report().regions == 1, compiled.report()


def test_with_symbolic_sizes() -> None:
    compiled = kiln.compile(doubles, dynamic=True, backend="eager", options=OPTIONS)
    for size in (3, 5, 4):
        w, v = torch.arange(float(size)), torch.arange(float(size))
        x = torch.ones(size)
        assert torch.equal(compiled(w, x), doubles(v, x)) and torch.equal(w, v)
    assert compiled.report().compiles == 1 and not compiled.report().breaks


def test_data_of_sizes_that_must_be_equal_is_set() -> None:
    """One size is known from the image, one from its classes; a loss wants them equal."""
    layer = torch.nn.Linear(4, 3)

    def attacked(x: Tensor, y: Tensor) -> Tensor:
        change = torch.zeros_like(x).requires_grad_()
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(layer(x + change), y)
            (gradient,) = torch.autograd.grad(loss, change)
            with torch.no_grad():
                change.data = (change + 0.1 * gradient.sign()).clamp(-0.2, 0.2)
        return (x + change).detach()

    compiled = kiln.compile(attacked)
    for size in (2, 3, 4):
        x, y = torch.linspace(-1, 1, 4 * size).view(size, 4), torch.arange(size) % 3
        torch.testing.assert_close(compiled(x, y), attacked(x, y))
    assert not kiln.report_of(compiled).breaks
