"""Parameters, buffers and submodules that a frame adds: a later assignment goes to the member, as in eager.

It went to the `__dict__` of the instance, which hides the member from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.faults.outcome import assert_same


def buffer_of_a_first_call(self: Any, x: Tensor) -> object:
    if not hasattr(self, "total"):
        self.register_buffer("total", torch.zeros(2))
    self.total = self.total + x
    return x * self.total


def entry_of_the_table(self: Any, x: Tensor) -> object:
    self._buffers["total"] = x
    self.total = self.total + 1
    return self.total, list(self.state_dict())


def buffer_without_value(self: Any, x: Tensor) -> object:
    self.register_buffer("total", None)
    self.total = x * 2
    return self.total, list(self.state_dict())


def parameter_without_value(self: Any, x: Tensor) -> object:
    self.register_parameter("weight", None)
    try:
        self.weight = x
    except TypeError:
        return x + 1
    return x


def module_that_gives_way(self: Any, x: Tensor) -> object:
    self.add_module("act", nn.Tanh())
    try:
        self.act = x
    except TypeError:
        return self.act(x)
    return x


def parameter_in_the_table(self: Any, x: Tensor) -> object:
    self._parameters.update(weight=nn.Parameter(torch.ones(2)))
    try:
        self.weight = x
    except TypeError:
        return self.weight + x
    return x


def attribute_becomes_parameter(self: Any, x: Tensor) -> object:
    if "value" not in self._parameters:
        self.value = x
    self.value = nn.Parameter(torch.ones(2))
    first = self.value
    self.value = nn.Parameter(torch.zeros(2))
    return self.value + x + first


@pytest.mark.parametrize(
    "forward",
    [
        *(buffer_of_a_first_call, entry_of_the_table, buffer_without_value, parameter_without_value),
        *(module_that_gives_way, parameter_in_the_table, attribute_becomes_parameter),
    ],
)
def test_members(forward: Callable[[Any, Tensor], object]) -> None:
    cls = type("Model", (nn.Module,), {"forward": forward})
    expected, model = cls(), cls()
    compiled = kiln.compile(model)
    for call in range(3):
        x = torch.full((2,), call + 1.0)
        assert_same(compiled(x), expected(x))
        assert set(model.__dict__) == set(expected.__dict__)
        assert_same(dict(model.state_dict()), dict(expected.state_dict()))
    assert not any(reason.code.startswith("KILN9") for reason in kiln.report_of(compiled).eager_reasons)
