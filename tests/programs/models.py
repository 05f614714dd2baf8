"""Small models, each with something that an exported program has to describe."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    """Parameters, and two results in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        y = self.fc(x)
        if mask is not None:
            y = y * mask
        return {"logits": y, "batch": x.shape[0] * 2}


class Counter(nn.Module):
    """A buffer that each call changes, one that `state_dict` lacks, tied weights."""

    calls: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        return self.second(self.first(x)) * self.scale, self.calls


class Loss(nn.Module):
    """A loss and a prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        prediction = self.body(x)
        return ((prediction - target) ** 2).mean(), prediction
