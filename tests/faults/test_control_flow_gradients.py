"""Gradients of torch's control flow operators: which results have them, zeros or none, second ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as torch_map

import kiln

LINEAR = nn.Linear(3, 3)
BACKENDS = pytest.mark.parametrize("backend", ["eager", "kiln"])


def no_history(x: Tensor, w: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.detach() + 1, (x,))


def no_history_in_both(x: Tensor, w: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.detach() * 2, lambda x: x.detach() + 1, (x,))


def read_by_one(x: Tensor, w: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, w: x * 2, lambda x, w: x * w, (x, w))


def read_by_none(x: Tensor, w: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, w: x * 2, lambda x, w: x * 3, (x, w))


def integers(x: Tensor, w: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x, w: (x * 2, w.long()), lambda x, w: (x * w, w.long() + 1), (x, w))


def mapped(x: Tensor, w: Tensor) -> Any:
    return torch_map(lambda row, w: (row * 2, w.detach() * row.detach()), x, w)


def scanned(x: Tensor, w: Tensor) -> Any:
    return scan(lambda c, row: ((c + row).detach(), row * 2), torch.ones(()), x)


# What torch's operators give in eager mode, where they run torch's compiler: whether each result requires a gradient,
# and the gradients of `x` and `w` (their first elements) for `x` of ones and of minus ones; `w` is 5.
AS_TORCH = [
    (no_history, [True], [(2.0, None), (0.0, None)]),
    (no_history_in_both, [True], [(0.0, None), (0.0, None)]),
    (read_by_one, [True], [(2.0, 0.0), (5.0, -1.0)]),
    (read_by_none, [True], [(2.0, None), (3.0, None)]),
    (integers, [True, False], [(2.0, 0.0), (5.0, -1.0)]),
    (mapped, [True, True], [(2.0, 0.0), (2.0, 0.0)]),
    (scanned, [True, True], [(2.0, None), (2.0, None)]),
]


@BACKENDS
@pytest.mark.parametrize("case", AS_TORCH, ids=lambda case: case[0].__name__)
def test_results_and_gradients_are_those_of_torchs_operators(case: Any, backend: str) -> None:
    program, require, wanted = case
    compiled = kiln.compile(program, backend=backend, fullgraph=True)
    for sign, expected in zip((1, -1), wanted, strict=True):
        inputs = [(sign * torch.ones(3)).requires_grad_(), torch.full((3,), 5.0, requires_grad=True)]
        made = compiled(*inputs)
        results = made if isinstance(made, tuple) else (made,)
        assert [result.requires_grad for result in results] == require
        root = sum(result.sum() for result in results if result.requires_grad)
        found = torch.autograd.grad(root, inputs, allow_unused=True)
        assert tuple([None if grad is None else grad[0].item() for grad in found]) == expected


def branch(x: Tensor, w: Tensor, plain: bool) -> Tensor:
    sides = (lambda x: (x * w).sin() * x.shape[0], lambda x: LINEAR(x).tanh() * w)
    if plain:
        return sides[not x.sum() > 0](x)
    return torch.cond(x.sum() > 0, *sides, (x,))


def branch_in_branch(x: Tensor, w: Tensor, plain: bool) -> Tensor:
    return (
        branch(x * 2, w, plain)
        if plain and x[0] > 0
        else x.cos() * w
        if plain
        else torch.cond(x[0] > 0, lambda: branch(x * 2, w, False), lambda: x.cos() * w)
    )


def recurrence(x: Tensor, w: Tensor, plain: bool) -> Tensor:
    if not plain:
        return scan(lambda c, row: ((c * w + row).tanh(), c * row), x[0] * 1, x * w)[1]
    carry, rows = x[0] * 1, []
    for row in x * w:
        rows.append(carry * row)
        carry = (carry * w + row).tanh()
    return torch.stack(rows)


@pytest.mark.parametrize("program", [branch, branch_in_branch, recurrence], ids=lambda program: program.__name__)
def test_second_derivatives(program: Callable[..., Tensor]) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for sign in (1, -1):
        x = (sign * torch.rand(3) if program is not recurrence else torch.randn(4, 3)).requires_grad_()
        inputs = [x, torch.randn(3, requires_grad=True)]
        found = [second(run, inputs) for run in (lambda *a: compiled(*a, False), lambda *a: program(*a, True))]
        torch.testing.assert_close(*found)


def second(run: Callable[..., Tensor], inputs: list[Tensor]) -> Any:
    first = torch.autograd.grad(run(*inputs).cos().sum(), inputs, create_graph=True)
    return first, torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs)
