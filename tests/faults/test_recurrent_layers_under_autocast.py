"""Recurrent layers behind a layer of lower precision: torch asks whether any autocast is on, which broke the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import kiln


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_layer_of_other_precision_than_its_input(kind: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.layer = nn.Linear(4, 8), kind(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(self.inner(x))[0]
            return output

    model, x = Model(), torch.randn(5, 3, 4)
    compiled = kiln.compile(model, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = model(x), compiled(x)
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
