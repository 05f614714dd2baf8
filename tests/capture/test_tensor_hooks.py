"""Hooks on gradients, kept gradients and reentrant checkpoints: what is in the graph, and that all is as in eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import kiln
from tests.capture.idioms.outcome import same

FACTOR = 2.0
WEIGHT = torch.full((3,), 2.0)
SETTINGS = {"factor": 2.0}
TIMES = partial(torch.mul, other=2.0)


class Settings:
    factor = 2.0


Program = Callable[[torch.Tensor], Any]


def constant_variable(x):
    scale, y = 3.0, x * 2
    y.register_hook(lambda g: g * scale)
    return y.sum()


def tensor_variable(x):
    y, mask = x * 2, (x > 0).float()
    y.register_hook(lambda g: g * mask)
    mask += 1
    return (y * y).sum()


def default_argument(x):
    y = x * 2
    y.register_hook(lambda g, k=3.0: g * k)
    return (y * y).sum()


def argument(x, scale=3.0):
    y, times = x * 2, x * 1
    y.register_hook(lambda g: g * scale * x.detach() * times.detach())
    return (y * y).sum()


def doubled(g, k=2.0):
    return torch.mul(g.to(torch.float32), k) * math.pi


def calls_functions(x):
    y = x * 2
    y.register_hook(lambda g: doubled(g).clone())
    y.register_hook(torch.neg)
    return (y * y).sum()


def gradient_inside(x):
    scale, y = 3.0, x * 2
    y.register_hook(lambda g: g * scale)
    (g,) = torch.autograd.grad((y * y).sum(), x)
    return (x * g).sum() + g.sum(), g.sin()


class Cosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x.cos()


def custom_gradient_inside(x):
    (g,) = torch.autograd.grad((Cosine.apply(x * 2) * x).sum(), x)
    return (x * g).sum(), g * 2


def two_gradients_inside(x):
    y = x * 2
    y.register_hook(lambda g: (g * y.detach()).sin())
    (g,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    z = g * x
    z.register_hook(lambda g: g.cos() + 1)
    (h,) = torch.autograd.grad(z.sum(), x, create_graph=True)
    return (x * h).sum()


def keeps_gradient_inside(x):
    y = x * 2
    y.retain_grad()
    return (y * y).sum()


def reentrant(x):
    return checkpoint(lambda v: v.sin() * v, x * 1, use_reentrant=True).sum()


def hook_of_an_inner_result(x):
    y = x * 2
    y.register_hook(lambda g: g * g + 1)
    z = y * 1
    return (z * z).sum(), z


IN_THE_GRAPH: list[Program] = [
    *(constant_variable, tensor_variable, argument, default_argument, calls_functions, keeps_gradient_inside),
    *(gradient_inside, custom_gradient_inside, two_gradients_inside, reentrant, hook_of_an_inner_result),
]


def variable_assigned_later(x):
    scale, y = 2.0, x * 2
    y.register_hook(lambda g: g * scale)
    scale = 5.0
    return (y * y).sum()


def remembers(x):
    seen, y = [], x * 2
    y.register_hook(seen.append)
    return y.sum(), seen


def removed(x):
    y = x * 2
    handle = y.register_hook(lambda g: g * 7)
    handle.remove()
    return y.sum()


def of_an_input(x):
    x.register_hook(lambda g: g * 5)
    return (x * 2).sum()


def keeps_gradient_of_result(x):
    y = x * 2
    y.retain_grad()
    return (y * y).sum(), y


def hook_of_a_result(x):
    y = x * 2
    y.register_hook(lambda g: g * g + 1)
    return (y * y).sum(), y


def reentrant_without_gradient(x):
    w = x * 2
    return checkpoint(lambda v: (v * w).sin(), torch.ones(3), use_reentrant=True).sum() + x.sum()


def reentrant_with_plain_result(x):
    return checkpoint(lambda v: (v.sin(), torch.ones(3)), x * 1, use_reentrant=True)[0].sum()


BREAKS: list[Program] = [
    *(variable_assigned_later, remembers, removed, of_an_input, keeps_gradient_of_result),
    *(reentrant_without_gradient, reentrant_with_plain_result, hook_of_a_result),
]


def trained(function: Program) -> Any:
    """The loss, the gradient of the argument, and what else is returned, with kept gradients."""
    torch.manual_seed(0)
    x = torch.randn(3, requires_grad=True)
    made = function(x)
    loss, *rest = made if isinstance(made, tuple) else (made,)
    loss.backward()
    kept = [part.grad if isinstance(part, torch.Tensor) else part for part in rest]
    return loss.detach(), x.grad, kept


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", None])
@pytest.mark.parametrize("program", IN_THE_GRAPH + BREAKS, ids=lambda program: program.__name__)
def test_as_eager(program: Program, backend: str | None) -> None:
    chosen = {} if backend is None else {"backend": backend}
    compiled = kiln.compile(program, options={"cache": False}, **chosen)
    for _ in range(2):
        assert same(trained(program), trained(compiled))
    report = compiled.report()
    assert bool(report.breaks or report.eager_reasons) == (program in BREAKS), report


def global_number(x):
    y = x * 2
    y.register_hook(lambda g: g * FACTOR if g.shape[0] == 3 else None)
    return (y * y).sum()


def scaled(g):
    return g * FACTOR


def global_in_a_function(x):
    y = x * 2
    y.register_hook(lambda g: scaled(g))
    return (y * y).sum()


def hook_from_outside(x):
    y = x * 2
    y.register_hook(scaled)
    return (y * y).sum()


def global_tensor(x):
    y = x * 2
    y.register_hook(lambda g: g * WEIGHT)
    return (y * y).sum()


def global_dict(x):
    y = x * 2
    y.register_hook(lambda g: g * SETTINGS["factor"])
    return (y * y).sum()


def class_attribute(x):
    y = x * 2 * Settings.factor
    y.register_hook(lambda g: g * getattr(Settings, "factor"))  # noqa: B009
    y.register_hook(lambda g: g * Settings.factor)
    return (y * y).sum()


def global_partial(x):
    y = x * 2
    y.register_hook(lambda g: TIMES(g))
    return (y * y).sum()


def global_set_before(x):
    global FACTOR
    FACTOR = FACTOR + 1
    y = x * 2
    y.register_hook(lambda g: g * FACTOR)
    return (y * y).sum()


def shared_variable():
    factor = 2.0

    def program(x):
        y = x * 2
        y.register_hook(lambda g: g * factor)
        return (y * y).sum()

    def assign(value):
        nonlocal factor
        factor = value

    return program, assign


def variable_of_the_hook():
    factor = 2.0

    def hook(g):
        return g * factor

    def program(x):
        y = x * 2
        y.register_hook(hook)
        return (y * y).sum()

    def assign(value):
        nonlocal factor
        factor = value

    return program, assign


def assign_everywhere(value: float) -> None:
    global FACTOR, WEIGHT, TIMES
    FACTOR, WEIGHT, TIMES = value, torch.full((3,), value), partial(torch.mul, other=value)
    SETTINGS["factor"] = Settings.factor = value


READS: list[Program] = [
    *(global_number, global_in_a_function, hook_from_outside, global_tensor, global_dict, class_attribute),
    *(global_partial, global_set_before),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", None])
def test_hooks_read_when_the_backward_runs(backend: str | None) -> None:
    chosen = {} if backend is None else {"backend": backend}
    cases = [(program, assign_everywhere) for program in READS]
    for program, assign in [*cases, shared_variable(), variable_of_the_hook()]:
        compiled = kiln.compile(program, options={"cache": False}, **chosen)
        for later in (5.0, 7.0):
            gradients = []
            for function in (program, compiled):
                assign(2.0)
                x = torch.ones(3, requires_grad=True)
                loss = function(x)
                assign(later)
                loss.backward()
                gradients.append(x.grad)
            assert same(*gradients), program.__name__
        report = compiled.report()
        assert backend or report.breaks or report.eager_reasons, program.__name__
    assign_everywhere(2.0)


def of_the_result(x, loss, result):
    return torch.autograd.grad(loss, [result, x])


def kept_for_the_result(x, loss, result):
    result.retain_grad()
    loss.backward()
    return x.grad, result.grad


def by_another_hook(x, loss, result):
    result.register_hook(lambda g: g * 3)
    (loss + result.sum()).backward()
    return x.grad


@pytest.mark.parametrize("program", [hook_of_an_inner_result, hook_of_a_result], ids=lambda program: program.__name__)
@pytest.mark.parametrize("ask", [of_the_result, kept_for_the_result, by_another_hook])
def test_gradients_asked_for_outside_go_through_the_hook(ask: Callable[..., Any], program: Program) -> None:
    compiled = kiln.compile(program)
    for _ in range(3):
        x, other = (torch.tensor([1.0, -0.5, 2.0], requires_grad=True) for _ in range(2))
        torch.testing.assert_close(ask(x, *compiled(x)), ask(other, *program(other)))
