"""`tolist()` with other values in each call: few compiles, then symbolic numbers. Messages of several forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from tests.capture.idioms.outcome import outcome, same


def returned(x, sizes):
    return x.sum(), (sizes * 2).tolist(), x[:2].tolist()


def split_sizes(x, sizes):
    first, second = x.split(sizes.tolist())
    return first.sum() * second


def checked(x, sizes, name=None):
    count = sizes.max().item()
    if count > 10:
        raise ValueError(f"{name or 'it'}: too large" if x.dim() == 1 else "bad")
    torch._check(count >= 1)
    return x.narrow(0, 0, count) + 1


@pytest.mark.parametrize(("function", "compiles"), [(returned, 5), (split_sizes, 5), (checked, 1)])
def test_other_values_in_each_call(function: Callable[..., Any], compiles: int) -> None:
    compiled = kiln.compile(function, backend="eager", options={"cache": False})
    for first in (3, 4, 5, 6, 7, 8, 9):
        args = torch.arange(12.0), torch.tensor([first, 12 - first])
        assert same(outcome(function, args), outcome(compiled, args))
    report = compiled.report()
    assert report.compiles <= compiles
    assert not report.breaks


@pytest.mark.filterwarnings("ignore")
def test_sizes_that_do_not_add_up() -> None:
    compiled = kiln.compile(split_sizes, backend="eager", options={"cache": False})
    for pair in ([3, 9], [4, 8], [5, 7], [6, 6], [7, 5], [8, 4], [8, 5], [1, 11]):
        args = torch.arange(12.0), torch.tensor(pair)
        expected, got = outcome(split_sizes, args), outcome(compiled, args)
        assert expected[0] is got[0] is RuntimeError if sum(pair) != 12 else same(expected, got)


def test_halves_of_a_masked_tensor_are_one_graph() -> None:
    """Nothing is known of the half of a number of rows, and the matrices of a half have gaps between them."""

    def f(x, s):
        x = x[s > 0]
        pairs = x[: x.shape[0] // 2 * 2].reshape(x.shape[0] // 2, 2, 3, 4)
        return pairs[:, 0] @ pairs[:, 1].mT, pairs[:, 0].reshape(pairs[:, 0].shape) + 1

    compiled = kiln.compile(f, fullgraph=True, options={"cache": False})
    for rows in (8, 8, 6):
        x, s = torch.randn(rows, 3, 4), torch.arange(rows) - 2
        torch.testing.assert_close(compiled(x, s), f(x, s))
