"""Sums that were split into blocks of different sizes along one symbol became one kernel: parts were not written."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

import kiln
from kiln.pipeline.session import KilnWarning


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.linear(self.norms[1](x))


def test_blocks_of_two_sizes() -> None:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 2, 8)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", KilnWarning)
        for call in (model, kiln.compile(model, dynamic=True)):
            model.zero_grad()
            call(x).sin().sum().backward()
            found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(found[1], found[0])
