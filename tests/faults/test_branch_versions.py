"""How often a tensor was changed, where sides of an `if` on data, or a turn of a loop, have changed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def of_an_argument(x: Tensor) -> Any:
    if x.sum() > 0:
        x.add_(1)
    else:
        x.mul_(2)
        x.mul_(3)
    return x + 1, x._version


def of_a_result(x: Tensor) -> Any:
    y = x * 1
    if x.sum() > 0:
        y.add_(1)
    else:
        y.mul_(2)
        y.mul_(3)
    return y, y._version


def of_one_side(x: Tensor) -> Any:
    if x.sum() > 0:
        x.add_(1)
    return x._version


@pytest.mark.parametrize("program", [of_an_argument, of_a_result, of_one_side])
def test_a_version_that_is_read_counts_the_side_that_was_taken(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program)
    for number in (1.0, -1.0, 2.0, -2.0):
        expected = program(torch.full((2,), number))
        torch.testing.assert_close(compiled(torch.full((2,), number)), expected)


def both_sides(x: Tensor, state: Tensor) -> Tensor:
    state.add_(1)
    if x.sum() > 0:
        state.add_(1)
    else:
        state.mul_(2)
    return x + 1


def nested_sides(x: Tensor, state: Tensor) -> Tensor:
    if x.sum() > 0:
        if x.sum() > 3:
            state.add_(1)
        else:
            state.mul_(2)
        state.mul_(2)
    else:
        state.mul_(3).add_(1)
    return x + 1


@pytest.mark.parametrize("program", [both_sides, nested_sides])
def test_of_two_sides_that_change_a_tensor_one_counts(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for number in (1.0, -1.0, 4.0):
        x, states = torch.full((2,), number), (torch.ones(2), torch.ones(2))
        torch.testing.assert_close(compiled(x, states[0]), program(x, states[1]))
        assert torch.equal(*states) and states[0]._version == states[1]._version == 2


def needs_gradient(x: Tensor, w: Tensor) -> Any:
    y, turns = x, 0
    while y.sum() < 10:
        if y.requires_grad:
            turns += 1
        y = y * w
    return y, torch.tensor(turns)


def is_leaf(x: Tensor, w: Tensor) -> Any:
    y, leaves = x, torch.zeros(())
    while y.sum() < 10:
        leaves = leaves + y.is_leaf
        y = y * w
    return y, leaves


@pytest.mark.parametrize("needed", [True, False])
@pytest.mark.parametrize("program", [needs_gradient, is_leaf])
def test_a_turn_may_ask_whether_a_tensor_has_a_gradient(program: Callable[[Tensor, Tensor], Any], needed: bool) -> None:
    compiled = kiln.compile(program)
    for number in (1.0, 0.1):
        x, w = torch.full((2,), number), torch.full((2,), 2.0, requires_grad=needed)
        torch.testing.assert_close(compiled(x, w), program(x, w))
