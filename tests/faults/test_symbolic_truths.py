"""Truths that depend on sizes, numbers or data: for torch and for `is` they are what `True` and `False` are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor, Tensor, bool], Any]

OF_TRUTHS: dict[str, Program] = {
    "and": lambda x, mask, truth: mask & truth,
    "or, reflected": lambda x, mask, truth: truth | mask,
    "sum": lambda x, mask, truth: mask + truth,
    "product": lambda x, mask, truth: (mask * truth, x * truth),
    "full": lambda x, mask, truth: (torch.full((2,), truth), x.new_full((2,), truth)),
    "where": lambda x, mask, truth: (torch.where(mask, truth, False), torch.where(mask, truth, 2)),
    "is": lambda x, mask, truth: (truth is True, truth is not False, x * 2 if truth is True else x),
    "is another": lambda x, mask, truth: (truth is (not truth), (not truth) is (len(x) <= 3), x),
    "is no truth": lambda x, mask, truth: (truth is None, truth is not None, x),
}
TRUTHS: dict[str, Callable[[Tensor, Tensor, int], bool]] = {
    "a size": lambda x, mask, n: len(x) > 3,
    "a number": lambda x, mask, n: n > 3,
    "data": lambda x, mask, n: x.sum().item() > 0,
    "selected rows": lambda x, mask, n: len(mask.nonzero()) > 2,
}


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("name", OF_TRUTHS)
def test_symbolic_truths(name: str, truth: str) -> None:
    def program(x: Tensor, mask: Tensor, n: int) -> Any:
        return OF_TRUTHS[name](x, mask, TRUTHS[truth](x, mask, n))

    for dynamic in (None, True):
        compiled = kiln.compile(program, dynamic=dynamic, options={"cache": False})
        for seed in range(4):
            x = torch.randn(3 + seed % 3, generator=torch.Generator().manual_seed(seed))
            given = x, x.abs() > 0.5, 3 + seed % 3
            actual, expected = compiled(*given), program(*given)
            torch.testing.assert_close(
                [part for part in leaves(actual) if isinstance(part, Tensor)],
                [part for part in leaves(expected) if isinstance(part, Tensor)],
            )
            assert [p for p in leaves(actual) if type(p) is bool] == [p for p in leaves(expected) if type(p) is bool]


def leaves(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)
