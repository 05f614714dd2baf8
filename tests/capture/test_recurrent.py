"""`nn.LSTM` in training: one region, with the values and gradients of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kiln


def trained(module: Any, lstm: torch.nn.LSTM, x: torch.Tensor) -> list[torch.Tensor]:
    lstm.zero_grad()
    x = x.clone().requires_grad_()
    out, (h, c) = module(x)
    ((out * out).sum() + (h * c).sum()).backward()
    gradients = [p.grad.clone() for p in (x, *lstm.parameters()) if p.grad is not None]
    return [out.detach(), h.detach(), c.detach(), *gradients]


@pytest.mark.parametrize("dynamic", ["never", "always"])
def test_lstm_has_gradients(dynamic: str) -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    compiled = kiln.compile(lstm, options={"cache": False, "dynamic": dynamic})
    for _ in range(2):
        x = torch.randn(2, 5, 3)
        for expected, got in zip(trained(lstm, lstm, x), trained(compiled, lstm, x), strict=True):
            torch.testing.assert_close(got, expected)
    assert compiled.report().regions == 1 and not compiled.report().eager
