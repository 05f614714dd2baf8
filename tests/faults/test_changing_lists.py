"""Lists that change while they are iterated over, forwards and backwards, with graph breaks between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import outcome


def appends_before_a_break(x: Tensor, items: list[Any]) -> Any:
    items.append(x)
    return "".join([str(item + 1) for item in items]), [str(item) for item in items]


def appends_and_breaks_in_a_loop(x: Tensor, items: list[Any]) -> Any:
    items.append(x)
    text = ""
    for item in items:
        text += str(item + 1)
        if len(items) < 5:
            items.append(len(items))
    return text


def changes_while_reversed(x: Tensor, items: list[Any]) -> Any:
    seen = []
    for item in reversed(items):
        items[0] = int(x.sum().item())
        seen.append(item)
    for item in reversed(items):
        items.reverse()
        seen.append(item)
    for _item in reversed(items):
        items.clear()
        seen.append(str(x))
    return seen


def divmod_of_a_tensor(x: Tensor, items: list[Any]) -> Any:
    return divmod(x, 2)


@pytest.mark.parametrize(
    "program", [appends_before_a_break, appends_and_breaks_in_a_loop, changes_while_reversed, divmod_of_a_tensor]
)
def test_iterations_over_lists_that_change(program: Callable[..., Any]) -> None:
    compiled = kiln.compile(program, backend="eager")
    for _ in range(2):
        ours, theirs = [outcome(call, (torch.arange(3.0), [1, 2, 3])) for call in (compiled, program)]
        assert str(ours) == str(theirs)
