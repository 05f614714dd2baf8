"""Random programs of views, copies, writes and arithmetic: forward and backward against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.graph.autograd.programs import check
from tests.graph.passes.test_fuzz import program


def differentiable(seed: int) -> Callable[..., Any]:
    """The program on values with a history (a leaf cannot be written), and a result that uses each input."""

    def run(*inputs: Any) -> list[Any]:
        results = program(seed)(*[x * 1.5 for x in inputs])
        return [*results, sum(x.exp().sum() for x in inputs)]

    return run


@pytest.mark.parametrize("group", range(6))
def test_random_gradients(group: int) -> None:
    for seed in range(group * 8, group * 8 + 8):
        torch.manual_seed(seed)
        inputs = (
            torch.randn(2, 3, 4, requires_grad=True),
            torch.randn(4, 6)[:, ::2].requires_grad_(),
            torch.randn(3, 4).t().requires_grad_(seed % 3 > 0),
        )
        function = differentiable(seed)
        check(lambda c, *x, function=function: c(function, *x), inputs, passes=seed % 2 == 0)
