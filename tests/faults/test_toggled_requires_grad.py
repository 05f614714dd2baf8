"""Leaves that require gradients for a part of a region only: what was computed from them then has a gradient, which
arrives if they require gradients when the backward runs.

It was None, since the region saw how its inputs began and ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def begins(x: Tensor, w: Tensor) -> Tensor:
    x.requires_grad_(True)
    y = x * w
    x.requires_grad_(False)
    return y


def begins_alone(x: Tensor, w: Tensor) -> Tensor:
    x.requires_grad = True
    y = x * w.detach()
    x.requires_grad = False
    return y


def begins_in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    for turn in range(4):
        x.requires_grad_(turn % 2 == 0)
        w = w * x
    return w


def begins_for_a_gradient(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x.requires_grad_()
    loss = (x * x).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    x.requires_grad_(False)
    return gradient, loss


def without_gradients(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        x.requires_grad_(True)
        y = x * w
    z = x * w + y
    x.requires_grad_(False)
    return z


def made_inside(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    t = torch.ones(x.shape).requires_grad_()
    y = t * w
    t.requires_grad_(False)
    return y, t


def ends(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    x.requires_grad = False
    return y + x * 3


def ends_and_begins(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    x.requires_grad = False
    z = x * 3
    x.requires_grad = True
    return y + z


PROGRAMS = [begins, begins_alone, begins_in_a_loop, begins_for_a_gradient, without_gradients, made_inside]


def gradients(program: Callable[..., Any], n: int, requires_grad: bool) -> list[Tensor | None]:
    x, w = torch.linspace(1, 2, n), torch.linspace(2, 5, n).requires_grad_()
    found = program(x.requires_grad_(requires_grad), w)
    results = [found] if isinstance(found, Tensor) else list(found)
    assert all(result.requires_grad or result.is_leaf for result in results)
    leaves = [leaf.requires_grad_() for leaf in (x, w, *results) if leaf.is_leaf]
    torch.autograd.backward([result.sum() for result in results if not result.is_leaf])
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_begins_to_require_gradients(program: Any, dynamic: bool | None) -> None:
    compiled = kiln.compile(program, dynamic=dynamic)
    for n in (3, 4, 3):
        torch.testing.assert_close(gradients(compiled, n, False), gradients(program, n, False))


@pytest.mark.parametrize("program", [ends, ends_and_begins])
def test_ceases_to_require_gradients(program: Any) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for n in (3, 4, 3):
        torch.testing.assert_close(gradients(compiled, n, True), gradients(program, n, True))


def test_no_break_where_results_do_not_depend_on_it() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x.requires_grad_()
        (gradient,) = torch.autograd.grad((x * x).sum(), x)
        x.requires_grad_(False)
        return gradient, x * w

    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    found, expected = kiln.compile(program, fullgraph=True)(x, w), program(x, w)
    torch.testing.assert_close(found, expected)


def beside(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(3).requires_grad_(), w * 2, torch.ones(3)


def in_the_memory_of_a_result(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    product = w.exp() * 2
    return product.detach().requires_grad_(), product, product.detach()


def changed_without_gradients(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    leaf = (w * 2).detach().requires_grad_()
    with torch.no_grad():
        leaf.add_(1)
    return leaf, w.sin(), leaf.detach()


@pytest.mark.parametrize("program", [beside, in_the_memory_of_a_result, changed_without_gradients])
def test_a_leaf_that_is_a_result_gets_its_own_gradient(program: Any) -> None:
    """It was a result of the region's node, so that its `.grad` stayed None."""

    def found(run: Any) -> list[object]:
        w = torch.ones(3, requires_grad=True)
        leaf, product, plain = run(w)
        (leaf * product).sum().backward()
        return [leaf.is_leaf, leaf.grad, w.grad, plain, plain.requires_grad]

    torch.testing.assert_close(found(kiln.compile(program, fullgraph=True)), found(program))
