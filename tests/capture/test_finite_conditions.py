"""Tests of questions whether floats are finite: that they are is assumed, and checked before inputs change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import kiln
from kiln.graph.ir.parse import parse_graph
from kiln.graph.trace.finite import truth_if_finite

STEPS, BAD = 9, (4, 7, 8)


class Net(nn.Module):
    """With running statistics, which a step whose gradients are infinite changes in eager, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.25), nn.Linear(8, 3))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("weights", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.weights[1] += 1  # type: ignore[operator]
        return self.layers(x) * self.calls + self.weights[1]  # type: ignore[no-any-return,operator,index]


Program = Callable[[Net, optim.Optimizer, Any, Tensor], Tensor]


def scaled(net: Net, optimizer: optim.Optimizer, scaler: Any, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = net(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def unscaled_and_clipped(net: Net, optimizer: optim.Optimizer, scaler: Any, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = net(x).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def skipped(net: Net, optimizer: optim.Optimizer, scaler: Any, x: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=False)
    loss = net(x).square().mean()
    if not torch.isfinite(loss):
        return loss.detach()
    loss.backward()
    optimizer.step()
    return loss.detach()


def skipped_by_number(net: Net, optimizer: optim.Optimizer, scaler: Any, x: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=False)
    loss = net(x).square().mean()
    if math.isfinite(loss.item()):
        loss.backward()
        optimizer.step()
    return loss.detach()


def raising(net: Net, optimizer: optim.Optimizer, scaler: Any, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    return loss.detach()


PROGRAMS: dict[str, Program] = {
    "scaled": scaled,
    "unscaled and clipped": unscaled_and_clipped,
    "skipped": skipped,
    "skipped by number": skipped_by_number,
    "raising": raising,
}
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=0.05),
    "adamw fused": lambda p: optim.AdamW(p, lr=0.05, fused=True),
    "sgd fused": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
}


def trained(
    program: Program, make: Callable[[Any], optim.Optimizer], compiled: bool
) -> tuple[list[object], list[str], Any]:
    torch.manual_seed(0)
    net = Net().double()
    optimizer = make(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=3)

    def step(x: Tensor) -> Tensor:
        return program(net, optimizer, scaler, x)

    run = kiln.compile(step, options={"cache": False, "random": "eager"}) if compiled else step
    found, errors = list[object](), list[str]()
    for turn in range(STEPS):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(turn), dtype=torch.float64)
        try:
            found.append(run(x * (math.inf if turn in BAD else 1)))
        except RuntimeError as error:
            found.append(None)
            errors.append(str(error))
        found += [value.clone() for value in net.state_dict().values()]
    states = [value for state in optimizer.state.values() for value in state.values()]
    gradients = [parameter.grad for parameter in net.parameters()]
    return [*found, *states, *gradients, scaler.state_dict()], errors, run


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_steps_with_infinite_losses(program: str, optimizer: str) -> None:
    expected, eager_errors, _ = trained(PROGRAMS[program], OPTIMIZERS[optimizer], compiled=False)
    found, errors, run = trained(PROGRAMS[program], OPTIMIZERS[optimizer], compiled=True)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert errors == eager_errors
    report = kiln.report_of(run)
    assert not report.breaks and not report.eager
    assert report.compiles <= 3, report


SUM = "%1: f32[] = sum(%0, axes=(0,))"
NUMBER = "%5: f32[] = constant(value={}, dtype=f32, device=cpu)"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (["%1: b8[4] = isnan(%0)", "%2: b8[] = any(%1, axes=(0,))"], False),
        (["%1: b8[4] = eq(%0, %0)", "%2: b8[] = all(%1, axes=(0,))"], True),
        (["%1: b8[4] = isinf(%0)", "%3: b8[4] = logical_not(%1)", "%2: b8[] = all(%3, axes=(0,))"], True),
        ([SUM, NUMBER.format(0.0), "%2: b8[] = gt(%1, %5)"], None),
        ([SUM, NUMBER.format("inf"), "%2: b8[] = lt(%1, %5)"], True),
        ([SUM, NUMBER.format(0.0), "%3: b8[] = isnan(%1)", "%4: b8[] = gt(%1, %5)", "%2: b8[] = mul(%3, %4)"], None),
    ],
)
def test_what_a_condition_is_if_all_floats_are_finite(nodes: list[str], expected: bool | None) -> None:
    lines = "\n ".join(['graph(%0: f32[4] "x"):', *nodes, "return %2"])
    assert truth_if_finite(parse_graph(lines).outputs[0].value) is expected
