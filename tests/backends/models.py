"""A small model with parts for every backend."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import kiln


class Mixed(nn.Module):
    """A convolution, attention, a running sum that ONNX Runtime takes, and numbers that it does not draw."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).flatten(2).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None])[:, 0]
        return torch.special.log_softmax(self.out(y).cumprod(1), -1)


def check_inference_of_any_batch(backend: str) -> nn.Module:
    """Compare it with eager for three sizes. Returns the model, which was made for it."""
    model = Mixed().eval()
    compiled = kiln.compile(model, backend=backend)
    with torch.no_grad():
        for batch in (2, 3, 5):
            x = torch.randn(batch, 3, 8, 8)
            torch.testing.assert_close(compiled(x), model(x))
    return model
