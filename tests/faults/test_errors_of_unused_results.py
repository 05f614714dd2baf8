"""An index out of range, or a zero divisor, of a result that nothing uses is eager's error all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager

Program = Callable[[Tensor, Tensor], Any]


def overwritten(x: Tensor, i: Tensor) -> Tensor:
    y = x[i]
    y.zero_()
    return y + x.sum()


def filled(x: Tensor, i: Tensor) -> Tensor:
    return x.index_select(0, i).fill_(2.0)


def gathered(x: Tensor, i: Tensor) -> Tensor:
    x.gather(0, i.clamp(min=0))
    return x + 1


def embedded(x: Tensor, i: Tensor) -> Tensor:
    F.embedding(i.abs(), x[:, None])
    return x + 1


def divided(x: Tensor, i: Tensor) -> Tensor:
    7 // (5 - i)
    return x + 1


def only_its_size(x: Tensor, i: Tensor) -> Tensor:
    return x + x[i].shape[0]


PROGRAMS = [overwritten, filled, gathered, embedded, divided, only_its_size]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_eager_raises(program: Program, gradient: bool, dynamic: bool | None) -> None:
    compiled = kiln.compile(program, dynamic=dynamic)
    x = torch.arange(5.0, requires_grad=gradient)
    for index in ([0, 3], [2, 5], [1, 1], [1, 4, -1], [1, 2, -6]):
        assert_like_eager(compiled, program, x, torch.tensor(index))


def branch(x: Tensor, i: Tensor) -> Tensor:
    if i.max() < 5:
        x = x[i]
    return x.sum()


def choice(x: Tensor, i: Tensor) -> Tensor:
    good = [x[j] for j in (0, 1)]
    return good[0] if x.sum() > 100 else good[1] + i.sum()


@pytest.mark.parametrize("program", [branch, choice])
def test_a_side_that_is_not_taken_raises_nothing(program: Program) -> None:
    compiled = kiln.compile(program)
    for index in ([0, 3], [2, 7], [1, 1], [9]):
        assert_like_eager(compiled, program, torch.arange(5.0), torch.tensor(index))
    assert kiln.report_of(compiled).eager == 0
