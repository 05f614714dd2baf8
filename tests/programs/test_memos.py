"""Exports of calls that fill a table for later calls: the program computes what eager does, before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import kiln
from kiln.programs.call.errors import ExportChangesObject

KINDS: dict[type, int] = {}


def kind_of(value: object) -> int:
    if type(value) not in KINDS:
        KINDS[type(value)] = len(type(value).__name__)
    return KINDS[type(value)]


class ByType(nn.Module):
    """A library looks up what to do with a tensor by its type."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * kind_of(x) + self.bias * kind_of(self.bias)


class Norm(nn.Module):
    """The norm of a parameter is computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.norm is None:
            self.norm = self.linear.weight.norm()
        return self.linear(x) / self.norm


class Tables(nn.Module):
    """A table for each width, and statistics that change in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[1]
        if width not in self.tables:
            self.tables[width] = torch.arange(width).float().sin()
        return self.norm(x) + self.tables[width]


def scaled(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    wrapped: dict[str, Callable[[Tensor], Tensor]] = {}

    def call(x: Tensor) -> Tensor:
        if x.device.type not in wrapped:
            wrapped[x.device.type] = lambda value: function(value) * 3
        return wrapped[x.device.type](x)

    return call


shifted = scaled(lambda x: x + 1)


class Wrapped(nn.Module):
    """A wrapper is made for each device."""

    def forward(self, x: Tensor) -> Tensor:
        return shifted(x)


class Cleared(nn.Module):
    """Empties a table that is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, Tensor] = {}
        self.rows = [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        self.tables.clear()
        self.rows[:] = [1, 2]
        return x * 2


REMEMBERING = [ByType, Norm, Tables, Wrapped, Cleared]


@pytest.mark.parametrize("kind", REMEMBERING)
def test_what_a_call_remembers_is_no_change(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    KINDS.clear()
    model = kind()
    before = {key: value for key, value in vars(model).items() if not key.startswith("_")}
    program = kiln.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "rows"},))
    program.save(tmp_path / "model.kp")
    again = kiln.load_program(tmp_path / "model.kp")
    after = {key: value for key, value in vars(model).items() if not key.startswith("_")}
    assert after == before and not KINDS and not getattr(model, "tables", None)
    for rows in (3, 7):
        x = torch.randn(rows, 4)
        expected = model(x)
        assert_close(again(x), expected)


def test_an_export_leaves_statistics_and_random_numbers() -> None:
    model = Tables()
    random = torch.get_rng_state()
    kiln.export(model, (torch.ones(3, 4),))
    assert torch.equal(random, torch.get_rng_state())
    assert model.norm.num_batches_tracked == 0 and torch.equal(model.norm.running_mean, torch.zeros(4))
    x = torch.randn(5, 4)
    assert_close(kiln.export(model, (x,))(x), model(x))


class Sized(nn.Module):
    """Says which sizes the last call had."""

    def forward(self, x: Tensor) -> Tensor:
        self.rows, self.sizes, self.mode = x.shape[0], tuple(x.shape), "sum"
        return x.sum(0)


def test_numbers_that_a_call_only_stores_are_left_out() -> None:
    model = Sized()
    program = kiln.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "rows"},))
    assert not hasattr(model, "rows") and not hasattr(model, "sizes")
    x = torch.randn(7, 4)
    assert_close(program(x), model(x))


class Counts(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


class Initialises(nn.Module):
    """The first call differs from later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.is_ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_ready:
            self.is_ready = True
            self.shift.data.copy_(x.mean(0))
        return x - self.shift


class KeepsFirst(nn.Module):
    """What is remembered depends on the arguments of the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.first is None:
            self.first = x.mean()
        return x - self.first


class Draws(KeepsFirst):
    def forward(self, x: Tensor) -> Tensor:
        if self.first is None:
            self.first = torch.rand(4)
        return x - self.first


class Grows(KeepsFirst):
    """What is remembered depends on a size that is free."""

    def forward(self, x: Tensor) -> Tensor:
        if self.first is None or self.first.shape[0] < x.shape[0]:
            self.first = torch.arange(x.shape[0]).float()
        return x * self.first[: x.shape[0], None]


class Alternates(KeepsFirst):
    def forward(self, x: Tensor) -> Tensor:
        self.first = not self.first
        return x * 2 if self.first else x


@pytest.mark.parametrize("kind", [Counts, Initialises, KeepsFirst, Draws, Grows, Alternates])
def test_other_changes_of_objects_are_refused(kind: type[nn.Module]) -> None:
    model = kind()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    content = {key: value for key, value in vars(model).items() if not key.startswith("_")}
    with pytest.raises(ExportChangesObject):
        kiln.export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "rows"},))
    assert {key: value for key, value in vars(model).items() if not key.startswith("_")} == content
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
