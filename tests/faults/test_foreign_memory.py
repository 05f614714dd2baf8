"""Inputs that share memory in several storages: what NumPy, DLPack or a buffer of Python gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kiln


def add_between(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    read = y * 2
    x.add_(1)
    return read, y * 3


def twice(numbers: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(numbers), torch.from_numpy(numbers)


def with_part(numbers: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(numbers), torch.from_numpy(numbers[2:])


def in_a_part(numbers: Any) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(numbers[2:]), torch.from_numpy(numbers)


def through_dlpack(numbers: Any) -> tuple[Tensor, Tensor]:
    own = torch.tensor(numbers)
    return own, torch.from_dlpack(own[1:])


def of_an_array(numbers: Any) -> tuple[Tensor, Tensor]:
    own = torch.tensor(numbers)
    return own[1:], torch.from_numpy(own.numpy())


@pytest.mark.parametrize("apart_first", [False, True])
@pytest.mark.parametrize("made", [twice, with_part, in_a_part, through_dlpack, of_an_array])
def test_memory_that_is_in_several_storages(made: Callable[[Any], tuple[Tensor, Tensor]], apart_first: bool) -> None:
    compiled = kiln.compile(add_between)
    for number in range(4):
        if apart_first and number % 2 == 0:
            torch.testing.assert_close(
                compiled(torch.ones(6), torch.ones(4)), add_between(torch.ones(6), torch.ones(4))
            )
        torch.testing.assert_close(compiled(*made(np.arange(6.0))), add_between(*made(np.arange(6.0))))


def test_tensors_of_numpy_with_memory_of_their_own_are_one_variant() -> None:
    compiled = kiln.compile(add_between)
    for _ in range(3):
        compiled(torch.from_numpy(np.arange(6.0)), torch.from_numpy(np.arange(6.0)))
    report = compiled.report()
    assert report.compiles == 1 and not report.breaks, str(report)


@pytest.mark.parametrize("foreign", [False, True])
def test_a_buffer_whose_memory_is_an_arguments(foreign: bool) -> None:
    """The module is found unchanged, and only the argument is looked at."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            start = torch.from_numpy(np.zeros(4)) if foreign else torch.zeros(4).double()
            self.register_buffer("counts", start)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return add_between(self.counts, x)

    model, other = Counts(), Counts()
    compiled = kiln.compile(model)
    for shared in (False, False, True, True, False):
        mine, others = (
            torch.from_numpy(each.counts.numpy()[1:]) if shared else torch.ones(3).double() for each in (model, other)
        )
        x, y = (each[:1] for each in (mine, others))
        torch.testing.assert_close(compiled(x), other(y))
        torch.testing.assert_close(model.counts, other.counts)


def test_an_array_of_which_an_argument_is_a_part() -> None:
    def program(array: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        array[0] = 5.0
        read = x + 1
        array += 1
        return read, x * 2

    compiled = kiln.compile(program)
    compiled(np.zeros(6), torch.ones(4))
    for start, stop in ((2, 6), (0, 2), (2, 6)):
        mine, others = np.arange(6.0), np.arange(6.0)
        made = compiled(mine, torch.from_numpy(mine[start:stop]))
        torch.testing.assert_close(made, program(others, torch.from_numpy(others[start:stop])))
        assert (mine == others).all()


def test_parts_of_an_array_that_are_side_by_side() -> None:
    compiled = kiln.compile(add_between)
    for _ in range(3):
        mine, others = np.arange(6.0), np.arange(6.0)
        made = compiled(torch.from_numpy(mine[:3]), torch.from_numpy(mine[3:]))
        torch.testing.assert_close(made, add_between(torch.from_numpy(others[:3]), torch.from_numpy(others[3:])))
    report = compiled.report()
    assert report.compiles == 1 and not report.breaks, str(report)
