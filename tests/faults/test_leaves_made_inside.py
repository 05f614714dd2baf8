"""Gradients for leaves that a region makes: `x.detach().requires_grad_()`, `torch.zeros(3, requires_grad=True)`.

A loss that `torch.autograd.grad` had differentiated kept a gradient function that raised an internal error.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def of_square(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x.detach().requires_grad_()
    loss = (v**2).sum()
    return torch.autograd.grad(loss, v)[0], loss


def of_zeros(x: Tensor) -> tuple[Tensor, Tensor]:
    v = torch.zeros(3, requires_grad=True)
    loss = ((v + x) ** 2).sum()
    return v - 0.1 * torch.autograd.grad(loss, v)[0], loss


@pytest.mark.parametrize("program", [of_square, of_zeros])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_freed_loss(program: Any, requires_grad: bool) -> None:
    x = torch.randn(3, requires_grad=requires_grad)
    compiled = kiln.compile(program)
    for (gradient, loss), expected in zip([compiled(x), compiled(x)], [program(x)] * 2, strict=True):
        torch.testing.assert_close((gradient, loss), expected)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def retained(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x.detach().requires_grad_()
    energy = (v.sin() * v).sum()
    return torch.autograd.grad(energy, v, retain_graph=True)[0], energy


def differentiable(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x.detach().requires_grad_()
    energy = (v.sin() * v).sum()
    return torch.autograd.grad(energy, v, create_graph=True)[0], energy


def steps(x: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(3):
        x = x.detach().requires_grad_()
        energy = x.sin().sum()
        x = x - 0.1 * torch.autograd.grad(energy, x)[0]
    return x, energy


def linear(x: Tensor) -> tuple[Tensor, Tensor]:
    v = torch.ones(3, requires_grad=True)
    energy = (v * 2 + x).sum()
    return torch.autograd.grad(energy, v)[0], energy


@pytest.mark.parametrize("program", [retained, differentiable, steps, linear])
def test_results_whose_gradients_end_inside(program: Any) -> None:
    """One graph; the results require gradients, and a backward changes nothing or raises, as in eager."""
    x = torch.randn(3)
    compiled = kiln.compile(program, fullgraph=True)
    for results in (compiled(x), compiled(x)):
        expected = program(x)
        torch.testing.assert_close(results, expected)
        assert [result.requires_grad for result in results] == [result.requires_grad for result in expected]
        for result, other in zip(results, expected, strict=True):
            if other.requires_grad:
                assert errors_of(result) == errors_of(other)


def errors_of(result: Tensor) -> list[str]:
    """The kinds of errors of two backwards."""
    found = []
    for _ in range(2):
        try:
            result.sum().backward()
        except RuntimeError as error:
            found.append(str(error)[:40])
        else:
            found.append("")
    return found


def test_leaf_that_leaves() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x.detach().requires_grad_()
        return (v**2).sum(), v

    loss, leaf = kiln.compile(program)(torch.ones(3))
    loss.backward()
    assert leaf.is_leaf and torch.equal(leaf.grad, torch.full((3,), 2.0))


def test_result_that_another_is_computed_from() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x.detach().requires_grad_()
        h = v.sin()
        return h, (h**2).sum()

    h, loss = kiln.compile(program)(torch.ones(3))
    assert torch.equal(torch.autograd.grad(loss, h)[0], 2 * h.detach())


def test_reason_of_a_failed_gradient() -> None:
    """A call of `grad` that fails has freed the graph: the reason was the error of a second backward."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((x**2).sum(), (x, y))

    compiled = kiln.compile(program)
    with pytest.raises(RuntimeError, match="not have been used"):
        compiled(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
    assert "not have been used" in str(kiln.report_of(compiled).breaks)
