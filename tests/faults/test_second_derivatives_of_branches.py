"""Gradients of gradients through branches and loops that are nested graphs: the graph breaks at the first gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan

import kiln

WEIGHT = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
LAYER = nn.GRU(3, 3)


def branch(x: Tensor) -> Tensor:
    return ((x * WEIGHT).sin() if x.sum() > 0 else (x * WEIGHT).cos()).sum()


def operator(x: Tensor) -> Tensor:
    made: Tensor = torch.cond(x.sum() > 0, lambda x: (x * WEIGHT).sin(), lambda x: (x * WEIGHT).cos(), (x,))
    return made.sum()


def loop(x: Tensor) -> Tensor:
    return scan(lambda carry, row: ((carry * row).tanh(), (carry + row * WEIGHT).sin()), torch.ones(3), x)[1].sum()


def turns(x: Tensor) -> Tensor:
    carry, rows = torch.ones(3), []
    for row in x:
        rows.append((carry + row * WEIGHT).sin())
        carry = (carry * row).tanh()
    return torch.stack(rows).sum()


def layer(x: Tensor) -> Tensor:
    out: Tensor = LAYER((x * WEIGHT)[:, None].repeat(3, 1, 1))[0]
    return out.sum()


PROGRAMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "branch": (branch, branch),
    "cond": (operator, branch),
    "scan": (loop, turns),
    "layer": (layer, layer),
}


def penalised(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, ...]:
    value = loss(x)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return torch.autograd.grad(gradient.square().sum() + value, [x, WEIGHT])


@pytest.mark.parametrize("name", PROGRAMS)
def test_inside(name: str) -> None:
    loss, same = PROGRAMS[name]
    compiled = kiln.compile(lambda x: penalised(loss, x), options={"cache": False})
    for scale in (1.0, -1.0, 2.0):
        x = (torch.rand(4, 3) * scale).requires_grad_()
        torch.testing.assert_close(compiled(x), penalised(same, x))


@pytest.mark.parametrize("name", PROGRAMS)
def test_outside(name: str) -> None:
    loss, same = PROGRAMS[name]
    compiled = kiln.compile(loss, options={"cache": False})
    for scale in (1.0, -1.0, 2.0):
        x = (torch.rand(4, 3) * scale).requires_grad_()
        torch.testing.assert_close(penalised(compiled, x), penalised(same, x))


def test_results_that_have_no_order() -> None:
    """One that is rebuilt as a view of another is computed from it: such a region runs eager."""

    def hessian(x: Tensor) -> Tensor:
        made: Tensor = torch.autograd.functional.hessian(branch, x.detach())  # type: ignore[no-untyped-call]
        return made

    compiled = kiln.compile(hessian, options={"cache": False})
    for scale in (1.0, -1.0):
        x = torch.rand(2, 3) * scale
        torch.testing.assert_close(compiled(x), hessian(x))
    assert {reason.code for reason in compiled.report().eager_reasons} == {"KILN2604"}
