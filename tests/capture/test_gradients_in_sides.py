"""Gradients that one side of a branch drops or sets: the other side, and what follows, see their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import kiln

Step = Callable[[nn.Linear, int, Tensor], None]


def descend(model: nn.Linear) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad * 0.1)


def frozen_at_first(model: nn.Linear, number: int, x: Tensor) -> None:
    """The backward came before."""
    if number < 3:
        model.bias.grad = None
    descend(model)


def whole_step(model: nn.Linear, number: int, x: Tensor) -> None:
    model.zero_grad()
    model(x).square().sum().backward()
    if number < 3:
        model.bias.grad = None
    descend(model)


def decided_by_data(model: nn.Linear, number: int, x: Tensor) -> None:
    model.zero_grad()
    model(x).square().sum().backward()
    if x.sum() > 0:
        model.bias.grad = None
    descend(model)


def replaced(model: nn.Linear, number: int, x: Tensor) -> None:
    model.zero_grad()
    model(x).square().sum().backward()
    if number > 3:
        model.bias.grad = torch.ones(2)
    descend(model)


@pytest.mark.parametrize("step", [frozen_at_first, whole_step, decided_by_data, replaced])
def test_gradients_of_a_side(step: Step) -> None:
    found = []
    for run in (step, kiln.compile(step)):
        torch.manual_seed(0)
        model, states = nn.Linear(2, 2), []
        for number in range(6):
            x = torch.randn(3, 2)
            if step is frozen_at_first:
                model.zero_grad()
                model(x).square().sum().backward()
            run(model, number, x)
            states.append(
                ([p.detach().clone() for p in model.parameters()], [p.grad is None for p in model.parameters()])
            )
        found.append(states)
    torch.testing.assert_close(found[1], found[0])
