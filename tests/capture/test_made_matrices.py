"""Sparse matrices that are made inside: products with them are in the graph, with the gradients of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor, Tensor, Tensor], Any]
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def made(places: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(places, weights, (x.size(0), x.size(0)))


def multiplied(places: Tensor, weights: Tensor, x: Tensor) -> Any:
    degree = torch.zeros(x.size(0)).index_add(0, places[0], torch.ones_like(weights)).clamp(min=1)
    return torch.sparse.mm(made(places, weights * degree[places[0]].rsqrt(), x), x)


def transposed(places: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    return made(places, weights, x).t() @ x + made(places, weights, x).coalesce() @ x


def vectors(places: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    a = made(places, weights, x)
    return torch.mv(a, x[:, 0]) * (a.T @ x[:, 1])


def dense(places: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    a = made(places, weights, x)
    return a.to_dense() @ x + a.t().to_dense() @ x


def from_dense(places: Tensor, weights: Tensor, x: Tensor) -> Any:
    scores = x @ x.t()
    return torch.sparse.mm((scores * (scores > 0)).to_sparse(), x) + weights.sum()


def returned(places: Tensor, weights: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    a = made(places, weights, x)
    return a @ x, a, a.t().coalesce()


def asked(places: Tensor, weights: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        a = made(places, weights, x)
    answers = a.requires_grad, a.is_sparse, a.is_coalesced(), a.dim(), *a.shape, a.layout is torch.sparse_coo
    return a @ x, torch.tensor([int(answer) for answer in answers])


def changed_later(places: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    doubled = weights * 1
    a = made(places, doubled, x)
    doubled.mul_(2)
    return a @ x


def other_calls(places: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    a = made(places, weights, x)
    return a @ x + torch.sparse.sum(a, 1).to_dense()[:, None]


def second(places: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    loss = (made(places, weights, x) @ x).square().sum()
    first = torch.autograd.grad(loss, [weights, x], create_graph=True)
    return first[0].square().sum() + first[1].pow(3).sum()


def too_few_weights(places: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    try:
        return made(places, weights[:-1], x) @ x
    except RuntimeError:
        return x + weights.sum()


IN_GRAPH: list[Program] = [multiplied, transposed, vectors, dense, from_dense, returned, asked]


def results(program: Program) -> list[Tensor]:
    found: list[Tensor] = []
    torch.manual_seed(0)
    for rows, elements in ((5, 7), (6, 9), (8, 20), (4, 3)):
        places, weights = torch.randint(0, rows, (2, elements)), torch.rand(elements, requires_grad=True)
        x = torch.rand(rows, 3, requires_grad=True)
        outputs = program(places, weights, x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = sum(y.to_dense().square().sum() for y in outputs if y.requires_grad)
        gradients = torch.autograd.grad(loss, [weights, x], allow_unused=True)  # type: ignore[arg-type]
        found += [*[y.detach() for y in outputs], *[g for g in gradients if g is not None]]
    return found


@pytest.mark.parametrize("program", [*IN_GRAPH, changed_later, other_calls, second, too_few_weights])
def test_programs_that_make_a_matrix(program: Program) -> None:
    fast = kiln.compile(program, options={"cache": False})
    for mine, eager in zip(results(fast), results(program), strict=True):
        assert mine.layout is eager.layout
        torch.testing.assert_close(mine, eager)
    if program in IN_GRAPH:
        report = kiln.report_of(fast)
        assert not report.breaks and not report.eager and report.compiles <= 4


def test_second_derivatives_outside_are_those_of_eager() -> None:
    fast = kiln.compile(transposed, options={"cache": False})
    for _ in range(2):
        seconds = []
        for program in (transposed, fast):
            torch.manual_seed(0)
            places, weights = torch.randint(0, 5, (2, 7)), torch.rand(7, requires_grad=True)
            x = torch.rand(5, 3, requires_grad=True)
            loss = program(places, weights, x).square().sum()
            first = torch.autograd.grad(loss, [weights, x], create_graph=True)
            seconds.append(torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), [weights, x]))
        torch.testing.assert_close(*seconds)
