"""Tensors that the second call has first, of a size that has changed since: the size is a symbol at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln


class Kept(nn.Module):
    """Keeps the result of a call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layer(x)
        if self.last is not None:
            hidden = hidden + self.last.mean()
        self.last = hidden.detach()
        return hidden


class GrowingCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.keys = x if self.keys is None else torch.cat([self.keys, x], 1)
        return (x @ self.keys.transpose(1, 2)).softmax(-1) @ self.keys


class LazyBias(nn.Module):
    """One more variant: where the bias is long enough."""

    def __init__(self) -> None:
        super().__init__()
        self.bias: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if self.bias is None or self.bias.shape[-1] < length:
            self.bias = -(torch.arange(length)[:, None] - torch.arange(length)).abs().float()
        return x @ x.transpose(1, 2) + self.bias[:length, :length]


@pytest.mark.parametrize(
    ("module", "lengths", "compiles"),
    [(Kept, (4, 6, 9, 11), 2), (GrowingCache, (5, 1, 1, 1), 2), (LazyBias, (5, 7, 9, 8, 11), 3)],
)
def test_compiles(module: type[nn.Module], lengths: tuple[int, ...], compiles: int) -> None:
    torch.manual_seed(0)
    model, eager = module(), module()
    eager.load_state_dict(model.state_dict())
    compiled: Any = kiln.compile(model, options={"cache": False})
    for length in lengths:
        x = torch.randn(2, length, 8)
        torch.testing.assert_close(compiled(x), eager(x))
    report = kiln.report_of(compiled)
    assert (report.compiles, report.breaks, report.eager) == (compiles, [], 0), str(report)


def test_without_symbols_each_size_is_compiled() -> None:
    compiled: Any = kiln.compile(Kept(), dynamic=False, options={"cache": False})
    for length in (4, 6, 9):
        compiled(torch.randn(2, length, 8))
    assert kiln.report_of(compiled).compiles == 3
