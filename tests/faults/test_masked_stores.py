"""Stores to what a mask selects, of values that a mask selects: how many they are is known at run time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager


def fill(x: Tensor, y: Tensor) -> Tensor:
    x[x > 0] = 1.0
    return x


def copy(x: Tensor, y: Tensor) -> Tensor:
    x[x > 0] = y[x > 0]
    return x * 2


def scale(x: Tensor, y: Tensor) -> Tensor:
    v = x * 2
    v[v > 0] = v[v > 0] * 3
    return v


def two_masks(x: Tensor, y: Tensor) -> Tensor:
    v = x * 1
    v[x > 0] = y[y > 0]
    return v


def select_and_add(x: Tensor, y: Tensor) -> Tensor:
    return x[x > 0] + y[x > 0]


PROGRAMS: list[Callable[[Tensor, Tensor], Tensor]] = [fill, copy, scale, two_masks, select_and_add]


@pytest.mark.parametrize("program", PROGRAMS)
def test_like_eager(program: Callable[[Tensor, Tensor], Tensor], recwarn: pytest.WarningsRecorder) -> None:
    compiled = kiln.compile(program, options={"cache": False}, dynamic=True)
    for size in (3, 5, 1, 0):
        x = torch.linspace(-1, 1, size * 4).view(size, 4)
        assert_like_eager(compiled, program, x, x.flip(1))
        assert_like_eager(compiled, program, x, x + 1)
    assert not any("KILN9" in str(warning.message) for warning in recwarn)


def store_nothing(x: Tensor, y: Tensor) -> Tensor:
    selected = y[y > 2]
    torch._check(selected.size(0) == 0)
    v = x * 1
    v[x > 2] = selected
    return v


def add_nothing(x: Tensor, y: Tensor) -> Tensor:
    selected = y[y > 2]
    torch._check(selected.size(0) == 0)
    return x[x > 2] * selected + 1


@pytest.mark.parametrize("program", [store_nothing, add_nothing])
def test_selections_that_are_known_to_be_empty(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    for size in (3, 5, 1, 0):
        x = torch.linspace(-1, 1, size * 4).view(size, 4)
        assert_like_eager(compiled, program, x, x.flip(1))


@pytest.mark.parametrize("program", [fill, copy, scale])
def test_one_mask_is_counted_once(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = kiln.compile(program, options={"cache": False}, fullgraph=True)
    assert_like_eager(compiled, program, torch.linspace(-1, 1, 12).view(3, 4), torch.ones(3, 4))
