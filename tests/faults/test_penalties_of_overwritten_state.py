"""Gradient penalties through modules that overwrite their state in the forward: a replay gets its old contents."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

import kiln


class Decayed(nn.Module):
    """Its result depends on a buffer that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.register_buffer("mean", torch.linspace(0, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).tanh() * self.mean.clone()  # type: ignore[operator]
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)  # type: ignore[operator, union-attr]
        return y * self.mean.clone()  # type: ignore[no-any-return, operator]


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "old": lambda: nn.Sequential(spectral_norm(nn.Linear(5, 6)), nn.Tanh(), spectral_norm(nn.Linear(6, 1))),
    "new": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 1)),
    "norm": lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)),
    "mean": lambda: nn.Sequential(Decayed(), nn.Linear(5, 1)),
}


def penalised(model: Any, module: nn.Module, sizes: tuple[int, ...]) -> list[Any]:
    found: list[Any] = []
    for size in sizes:
        torch.manual_seed(size)
        x = torch.randn(size, 5, requires_grad=True)
        module.zero_grad()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient.norm(2, dim=1) - 1).pow(2).mean().backward()
        found += [None if p.grad is None else p.grad.clone() for p in module.parameters()]
        found += [buffer.clone() for buffer in module.buffers()]
    return found


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", MAKERS)
def test_gradient_penalty(name: str, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    module = MAKERS[name]()
    other = copy.deepcopy(module)
    expected = penalised(other, other, (3, 4, 4))
    found = penalised(kiln.compile(module, dynamic=dynamic), module, (3, 4, 4))
    torch.testing.assert_close(found, expected)
