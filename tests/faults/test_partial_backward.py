"""A backward for some results, then one for others: errors, and what is freed, as in eager."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def apart(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp() * w, x.sin()


def joined(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x.exp()
    return h * w, h.sin()


def joined_without_saves(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x.sum(0) + 1
    return h + w, h.sin()


def nothing_saved(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x + w, x.sin()


def unused(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Where one tangent is missing, a `cat` of both becomes one with zeros."""
    h = torch.cat([x * w, x.cos()])
    a, b = h.chunk(2)
    return a.clone(), b * x


def updated(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x * w
    y[0] = y[1].sin()
    return y, w.exp() * x


PROGRAMS = (apart, joined, joined_without_saves, nothing_saved, unused, updated)
ORDERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "one by one": ((0,), (1,)),
    "last first": ((1,), (0,)),
    "the same again": ((0,), (0,)),
    "both, then one": ((0, 1), (1,)),
    "one, then both": ((0,), (0, 1)),
}


def outcome(function: Callable[..., Any], order: tuple[tuple[int, ...], ...], create_graph: bool) -> list[Any]:
    x, w = torch.linspace(0, 1, 6).view(2, 3).requires_grad_(), torch.linspace(1, 2, 3).requires_grad_()
    results = function(x, w)
    found: list[Any] = []
    for wanted in order:
        try:
            loss = sum((results[number] * results[number].detach()).sum() for number in wanted)
            grads = torch.autograd.grad(loss, (x, w), None, create_graph, create_graph, allow_unused=True)
        except RuntimeError as error:
            found.append(str(error)[:60])
        else:
            found.append([None if grad is None else grad.detach().double().numpy().round(4).tolist() for grad in grads])
    return found


@pytest.mark.parametrize("dynamic", [None, True])
def test_results_are_differentiated_one_after_the_other(dynamic: bool | None) -> None:
    for function in PROGRAMS if dynamic is None else (unused,):
        compiled = kiln.compile(function, dynamic=dynamic)
        for name, order in ORDERS.items():
            for create_graph in (False, True) if function is unused else (False,):
                expected = outcome(function, order, create_graph)
                assert outcome(compiled, order, create_graph) == expected, (function.__name__, name, create_graph)


def test_what_one_result_needs_is_freed() -> None:
    """What only a finished backward needs dies with it, although the graph of the other result is alive."""

    def alive(function: Callable[..., Any]) -> list[bool]:
        x, w = torch.ones(3, requires_grad=True), torch.ones(3)
        kept = weakref.ref(w)
        y, z = function(x, w)
        del w
        y.sum().backward()
        states = [kept() is not None]
        z.sum().backward()
        return states

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * w, x.sin()

    assert alive(kiln.compile(program)) == alive(program) == [False]
