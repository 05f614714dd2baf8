"""Hooks on gradients, kept gradients and reentrant checkpoints: what is in the graph, and that all is as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import kiln
from tests.capture.idioms.outcome import same

FACTOR = 2.0
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


def global_number(x):
    y = x * 2
    y.register_hook(lambda g: g * FACTOR if g.shape[0] == 3 else None)
    return (y * x).sum()


def keeps_gradient_inside(x):
    y = x * 2
    y.retain_grad()
    return (y * y).sum()


def reentrant(x):
    return checkpoint(lambda v: v.sin() * v, x * 1, use_reentrant=True).sum()


IN_THE_GRAPH: list[Program] = [
    *(constant_variable, tensor_variable, default_argument, global_number, keeps_gradient_inside, reentrant),
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


def reentrant_without_gradient(x):
    w = x * 2
    return checkpoint(lambda v: (v * w).sin(), torch.ones(3), use_reentrant=True).sum() + x.sum()


def reentrant_with_plain_result(x):
    return checkpoint(lambda v: (v.sin(), torch.ones(3)), x * 1, use_reentrant=True)[0].sum()


BREAKS: list[Program] = [
    *(variable_assigned_later, remembers, removed, of_an_input, keeps_gradient_of_result),
    *(reentrant_without_gradient, reentrant_with_plain_result),
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
def test_as_eager(program: Program, backend: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {} if backend is None else {"backend": backend}
    compiled = kiln.compile(program, options={"cache": False}, **chosen)
    for factor in (2.0, 4.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert same(trained(program), trained(compiled))
    report = compiled.report()
    assert bool(report.breaks or report.eager_reasons) == (program in BREAKS), report
