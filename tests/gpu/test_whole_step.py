"""Whole training steps on a GPU: multi-tensor kernels, and CUDA graphs of the step with its optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kiln
from kiln.api import report_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STEPS = 12
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "adamw-single": lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=False),
    "adamw-capturable": lambda params: torch.optim.AdamW(params, lr=1e-2, capturable=True),
    "adamw-fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, weight_decay=1e-3),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2),
}


class Net(nn.Module):
    """Parameters of many sizes, odd ones among them, and running statistics.

    No bias stands in front of a norm: its gradient is rounding errors, which Adam makes as large as any.
    """

    def __init__(self) -> None:
        super().__init__()
        sizes = (24, 33, 48, 65, 32)
        pairs = list(pairwise(sizes))
        self.layers = nn.ModuleList([nn.Linear(inner, outer, bias=False) for inner, outer in pairs])
        self.norms = nn.ModuleList([nn.BatchNorm1d(outer) for outer in sizes[1:]])

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.gelu(norm(layer(x)))
        return x


def trained(make: Callable[[Any], torch.optim.Optimizer], mode: str | None) -> tuple[list[Tensor], Any]:
    """Losses, norms, parameters and states after some steps; `mode` "eager" compiles nothing."""
    torch.manual_seed(0)
    net = Net().cuda()
    optimizer = make(net.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        return loss.detach(), norm

    run = step if mode == "eager" else kiln.compile(step, mode=mode)
    found: list[Tensor] = []
    for number in range(STEPS):
        x = torch.randn(16, 24, generator=torch.Generator().manual_seed(number)).cuda()
        found += [value.clone() for value in run(x)]
    found += [value.detach().clone() for value in net.state_dict().values()]
    states = [value for state in optimizer.state.values() for value in state.values()]
    found += [value.clone() for value in states if isinstance(value, Tensor)]
    return found, run


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_equal_eager(name: str, mode: str | None) -> None:
    expected, _ = trained(OPTIMIZERS[name], "eager")
    found, run = trained(OPTIMIZERS[name], mode)
    for value, other in zip(found, expected, strict=True):
        assert value.device == other.device
        torch.testing.assert_close(value, other, rtol=2e-3, atol=2e-4)
    report = report_of(run)
    assert not report.breaks
    assert report.compiles <= 3
    if mode is not None:
        assert report.graphs, str(report)


@pytest.mark.parametrize("aligned", [False, True])
def test_an_update_of_tensors_of_many_sizes(aligned: bool) -> None:
    """More tensors than a launch has parameters for, and one without elements."""
    torch.manual_seed(0)
    sizes = [0, 1, 2, 3, 1000, 4096] + [(16 * n if aligned else n) + 1 for n in range(290)]
    given = [[torch.randn(size, device="cuda") for size in sizes] for _ in range(3)]

    def update(params: list[Tensor], grads: list[Tensor], momenta: list[Tensor]) -> None:
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(momenta, grads)
        torch._foreach_add_(params, momenta, alpha=-0.1)

    expected = copy.deepcopy(given)
    update(*expected)
    compiled = kiln.compile(update)
    compiled(*given)
    for ours, theirs in zip(given, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert report_of(compiled).launches <= 16
