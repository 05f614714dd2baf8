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
from tests.faults.outcome import assert_like_eager, assert_same


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


class Plain:
    __slots__ = ("__dict__", "bound")
    scale = 5

    def double(self, x: Tensor) -> Tensor:
        return x * 2


def test_attributes_that_a_call_deletes() -> None:
    """What an earlier call set was guarded to be absent, as it is once this call has deleted it."""

    def program(state: Any, x: Tensor, step: int) -> object:
        if step == 1:
            state.double, state.scale, state.bound = (lambda y: y * 3), 7, x
        if step == 2:
            del state.double, state.scale, state.bound
        return state.double(x) * state.scale, hasattr(state, "bound")

    compiled = kiln.compile(program)
    state, expected = Plain(), Plain()
    for step in (0, 1, 0, 2, 0):
        assert_same(compiled(state, torch.ones(2), step), program(expected, torch.ones(2), step))
    assert not kiln.report_of(compiled).eager_reasons


def test_a_hook_of_all_modules() -> None:
    """The modules that the capture had called before were taken to have none."""
    model = nn.Linear(3, 3)

    def program(x: Tensor) -> object:
        before = model(x)
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, result: result * 2)
        during = model(x)
        handle.remove()
        return before, during, model(x)

    x = torch.ones(2, 3)
    compiled = kiln.compile(program)
    assert_same(compiled(x), program(x))
    assert not kiln.report_of(compiled).eager_reasons


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_gradient_of_another_dtype(dtype: torch.dtype) -> None:
    """A conversion sets `.data` first, and then that of the gradient."""
    model = nn.Linear(3, 3)
    model(torch.ones(2, 3)).sum().backward()
    compiled = kiln.compile(lambda x: model.to(dtype).float()(x))
    for _ in range(2):
        assert_same(compiled(torch.ones(2, 3)), model(torch.ones(2, 3)))
    assert not kiln.report_of(compiled).eager_reasons


@pytest.mark.parametrize("name", ["is_cuda", "itemsize", "names", "is_ort", "is_mtia"])
def test_properties_of_tensors(name: str) -> None:
    """Torch 2.13 has no `names`."""

    def program(x: Tensor) -> object:
        return getattr(x, name), x + 1

    compiled = kiln.compile(program)
    assert_like_eager(compiled, program, torch.ones(2))
    assert all(reason.code == "KILN1102" for reason in kiln.report_of(compiled).eager_reasons)
