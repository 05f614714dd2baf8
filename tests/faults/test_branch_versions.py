"""How often a tensor was changed, where sides of an `if` on data, or a turn of a loop, have changed it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
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


def one_side(x: Tensor, gate: Tensor) -> Tensor:
    if gate.sum() > 0:
        x.add_(1)
    return x + 1


def unequal_sides(x: Tensor, gate: Tensor) -> Tensor:
    if gate.sum() > 0:
        x.add_(1).mul_(2)
    else:
        x.mul_(2)
    return x + 1


def sides_within_sides(x: Tensor, gate: Tensor) -> Tensor:
    if gate.sum() > 0:
        x.add_(1)
        if gate.sum() > 8:
            x.add_(1).mul_(2).sub_(1)
        else:
            x.mul_(2)
    elif gate.sum() < -20:
        x.mul_(3).mul_(2)
    return x + 1


def several_branches(x: Tensor, gate: Tensor) -> Tensor:
    if gate.sum() > 0:
        x.add_(1)
    y = x * 2
    if gate.sum() > 8:
        x.add_(y).add_(1)
    x.mul_(2)
    return x + y


def turns_of_a_loop(x: Tensor, gate: Tensor) -> Tensor:
    for _ in range(5):
        x.add_(1)
        if x.sum() > gate.sum():
            break
    return x * 2


def returning_sides(x: Tensor, gate: Tensor) -> Tensor:
    if gate.sum() > 0:
        x.add_(1)
        return x * 2
    return x * 3


def a_view_beside(x: Tensor, gate: Tensor) -> Tensor:
    y = x[1:]
    if gate.sum() > 0:
        x.add_(1)
    return y * 2


def the_chosen_one(x: Tensor, gate: Tensor) -> Tensor:
    y = x + 0
    if gate.sum() > 0:
        y = x
    y.add_(1)
    return y


UNEQUAL = [
    one_side,
    unequal_sides,
    sides_within_sides,
    several_branches,
    turns_of_a_loop,
    returning_sides,
    a_view_beside,
    the_chosen_one,
]


@pytest.mark.parametrize("program", UNEQUAL)
def test_a_version_rises_by_what_the_side_that_is_taken_changes(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for number in (1.0, 3.0, -1.0, -7.0, 9.0, 3.0):
        gate, ours, theirs = torch.full((4,), number), torch.ones(3), torch.ones(3)
        torch.testing.assert_close(compiled(ours, gate), program(theirs, gate))
        assert torch.equal(ours, theirs) and ours._version == theirs._version


@pytest.mark.parametrize("gate", [1.0, -1.0])
def test_eager_code_may_use_what_the_other_side_would_have_changed(gate: float) -> None:
    compiled = kiln.compile(one_side)
    for _ in range(2):
        x, w = torch.ones(3), torch.full((3,), 2.0, requires_grad=True)
        loss = (x * w).sum()
        compiled(x, torch.full((4,), gate))
        with pytest.raises(RuntimeError, match="modified by an inplace") if gate > 0 else nullcontext():
            loss.backward()


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
