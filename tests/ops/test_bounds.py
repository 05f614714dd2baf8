"""Ops at the very bound of what their arguments mean: compared with eager, NaN and infinities included."""

from __future__ import annotations

import pytest
import torch

import kiln

X = torch.tensor([-1.0, 0.0, 0.25, 1.0, 1.5, float("nan")])


@pytest.mark.parametrize("eps", [None, -1.0, 0.0, 0.5, 0.75])
def test_logit_clamps_from_zero_on(eps: float | None) -> None:
    def logit(x: torch.Tensor) -> torch.Tensor:
        return torch.logit(x, eps)

    torch.testing.assert_close(kiln.compile(logit, fullgraph=True)(X), logit(X), equal_nan=True)
