"""Ranges that index tensors: one variant serves all sizes, and what else is asked of such a range is as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
import kiln.api as api

Program = Callable[[Tensor, Tensor], object]


def chosen(q: Tensor, action: Tensor) -> object:
    return q[range(len(action)), action]


def after_calls(q: Tensor, action: Tensor) -> object:
    return q[range(action.shape[0]), action.long().clamp(max=1)]


def written(q: Tensor, action: Tensor) -> object:
    q = q.clone()
    q[range(len(action)), action] = 1.0
    return q


def from_one_on(q: Tensor, action: Tensor) -> object:
    return q[range(1, len(action))], q[..., range(2)]


def along_the_second(q: Tensor, action: Tensor) -> object:
    return q.T[:, range(q.shape[0])]


def counted(q: Tensor, action: Tensor) -> object:
    return [q[range(len(action))][0], len(range(len(action))), list(range(len(action)))[-1], range(len(action))[1]]


def empty(q: Tensor, action: Tensor) -> object:
    return q[range(len(action), 2)]


def key_of_a_dict(q: Tensor, action: Tensor) -> object:
    return {(range(4), 1): q, (range(9), 1): action}.get((range(len(action)), 1)), {range(4): 1, range(9): 2}[range(9)]


def item_of_a_dict(q: Tensor, action: Tensor) -> object:
    table = {(range(n), 1): n for n in range(20)}
    return q * table[range(len(action)), 1]


def calls(program: Program, sizes: tuple[int, ...]) -> Program:
    compiled = kiln.compile(program)
    for n in sizes:
        torch.manual_seed(n)
        q, action = torch.randn(n, 3), torch.randint(3, (n,))
        torch.testing.assert_close(compiled(q, action), program(q, action), rtol=0, atol=0)
    return compiled


@pytest.mark.parametrize("program", (chosen, after_calls, written, from_one_on, along_the_second))
def test_one_variant_for_all_sizes(program: Program) -> None:
    report = api.report_of(calls(program, (4, 9, 13, 2)))
    assert (report.compiles, report.breaks) == (2, [])


@pytest.mark.parametrize("program", (counted, empty, key_of_a_dict, item_of_a_dict))
def test_what_else_is_asked_of_a_range(program: Program) -> None:
    calls(program, (4, 9, 2) if program is not item_of_a_dict else (4, 9))


def test_gradients() -> None:
    compiled = kiln.compile(chosen)
    for n in (3, 5, 8):
        q, action = torch.randn(n, 3, requires_grad=True), torch.randint(3, (n,))
        compiled(q, action).sum().backward()
        assert q.grad is not None and torch.equal(q.grad, torch.nn.functional.one_hot(action, 3).float())


def test_an_index_that_is_out_of_range() -> None:
    compiled = kiln.compile(lambda q, n: q[range(n.shape[0])])
    for n in (2, 3, 4):
        compiled(torch.ones(4, 2), torch.ones(n))
    with pytest.raises(IndexError):
        compiled(torch.ones(4, 2), torch.ones(5))
