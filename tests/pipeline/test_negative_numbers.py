"""Numbers of the caller, or of a tensor, that are negative where a kernel computes with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import kiln


def stored(x: Tensor, number: Tensor) -> Tensor:
    x = x.clone()
    x[:, number.item() % 8] = 1
    return x


def read(x: Tensor, number: Tensor) -> Tensor:
    n = int(number.item())
    return x[:, n % 8] + torch.arange(8)[n // 2 + 4]


def in_a_size(x: Tensor, number: Tensor) -> Tensor:
    """That `n + 8` is not negative says nothing of `n`."""
    n = int(number.item())
    torch._check(n + 8 >= 2)
    return (torch.ones(n + 8) * (n % 5)).cumsum(0)[:3].sum() + x


def given(x: Tensor, number: int) -> Tensor:
    return torch.where(torch.arange(8)[:, None] == number % 8, x * (number // 3 % 5), x + 1)


@pytest.mark.parametrize("function", [stored, read, in_a_size, given])
def test_remainders_have_the_sign_of_the_divisor(function: Callable[..., Tensor]) -> None:
    compiled, x = kiln.compile(function, dynamic=True), torch.randn(2, 8, 4)
    for number in (3, 5, -1, -3):
        value = number if function is given else torch.tensor(number)
        assert_close(compiled(x, value), function(x, value))


def window(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """That a window has rows does not say that its number of rows, or the number itself, is one or more."""
    i, j = int(row.item()), int(column.item())
    top, bottom, left, right = max(i - 1, 0), min(i + 1, 8), max(j - 1, 0), min(j + 1, 8)
    other, x = x[torch.tensor([1, 2, 3, 0])], x.clone()
    x[:, :, top:bottom, left:right] = other[:, :, top:bottom, left:right]
    return x.flatten(1)


def test_windows_at_the_edge() -> None:
    """The first row was read in front of the tensor."""
    compiled, x = kiln.compile(window), torch.randn(4, 1, 8, 8)
    for place in ((3, 4), (0, 4), (8, 0), (0, 0), (1, 7)):
        at = [torch.tensor(number) for number in place]
        assert_close(compiled(x, *at), window(x, *at))
