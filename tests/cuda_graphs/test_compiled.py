"""`kiln.compile(mode="reduce-overhead")` against eager, on the null device: every scenario runs whole programs."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import kiln
from kiln.api import report_of, reset, session_of
from kiln.runtime.cuda_graphs.graphs import CudaGraphs
from tests.cuda_graphs.null_device import NullDevice


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


def compiled(function: Any, device: NullDevice, **options: Any) -> Any:
    made = kiln.compile(function, options={"cuda_graphs": True, "cache": False, **options})
    graphs = session_of(made).graphs
    assert isinstance(graphs, CudaGraphs)
    graphs.make_device = lambda place: device
    return made


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def step(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    return loss


def pair(device: NullDevice) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Net()
    twin = copy.deepcopy(model)
    return model, compiled(twin, device)


def test_inference_with_held_results(device: NullDevice) -> None:
    model, fast = pair(device)
    with torch.no_grad():
        inputs = [torch.randn(5, 6) for _ in range(8)]
        held = [fast(x) for x in inputs]
        for x, y in zip(inputs, held, strict=True):
            close(y, model(x))
    assert len(device.graphs) == 1 and device.replays >= 6
    assert "CUDA graphs: 1, " in report_of(fast).text()


def test_training_steps(device: NullDevice) -> None:
    model, fast = pair(device)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, fast)]
    for _ in range(6):
        x = torch.randn(5, 6)
        losses = []
        for one, optimizer in zip((model, fast), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(step(one, x))
            optimizer.step()
        close(*losses)
    assert len(device.graphs) == 2, "a forward and a backward"
    assert device.replays >= 8


@pytest.mark.parametrize("to_none", [True, False])
def test_gradient_accumulation(device: NullDevice, to_none: bool) -> None:
    model, fast = pair(device)
    for n in range(9):
        x = torch.randn(5, 6)
        step(model, x)
        step(fast, x)
        for one, other in zip(gradients(fast), gradients(model), strict=True):
            close(one, other)
        if n % 3 == 2:
            model.zero_grad(set_to_none=to_none)
            fast.zero_grad(set_to_none=to_none)
    assert device.replays >= 12


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 2, 0)])
def test_several_forwards_before_the_backwards(device: NullDevice, order: tuple[int, ...]) -> None:
    model, fast = pair(device)
    for _ in range(5):
        inputs = [torch.randn(5, 6) for _ in order]
        for one in (model, fast):
            one.zero_grad()
            losses = [one(x).square().mean() for x in inputs]
            for number in order:
                losses[number].backward()
        for one, other in zip(gradients(fast), gradients(model), strict=True):
            close(one, other)


def test_a_sum_of_forwards(device: NullDevice) -> None:
    model, fast = pair(device)
    for _ in range(5):
        inputs = [torch.randn(5, 6) for _ in range(3)]
        for one in (model, fast):
            one.zero_grad()
            sum(one(x).square().mean() for x in inputs).backward()
        for one, other in zip(gradients(fast), gradients(model), strict=True):
            close(one, other)


def test_backward_twice_and_retained_graphs(device: NullDevice) -> None:
    model, fast = pair(device)
    for _ in range(5):
        x = torch.randn(5, 6)
        for one in (model, fast):
            one.zero_grad()
            y = one(x)
            y.sum().backward(retain_graph=True)
            y.square().sum().backward()
        for one, other in zip(gradients(fast), gradients(model), strict=True):
            close(one, other)


def test_compiled_after_compiled(device: NullDevice) -> None:
    model, fast = pair(device)
    other = compiled(lambda y: torch.tanh(y) * 2, device)
    for _ in range(6):
        x = torch.randn(5, 6)
        for one, after in ((model, lambda y: torch.tanh(y) * 2), (fast, other)):
            one.zero_grad()
            after(one(x)).sum().backward()
        for one, two in zip(gradients(fast), gradients(model), strict=True):
            close(one, two)


def test_gradients_that_are_kept(device: NullDevice) -> None:
    model, fast = pair(device)
    kept: list[tuple[Any, Any]] = []
    for _ in range(5):
        x = torch.randn(5, 6)
        for one in (model, fast):
            one.zero_grad()
            step(one, x)
        kept.append((gradients(fast), gradients(model)))
    for ours, theirs in kept:
        for one, two in zip(ours, theirs, strict=True):
            close(one, two)


def test_batch_norm_in_training(device: NullDevice) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    fast = compiled(copy.deepcopy(model), device)
    for _ in range(6):
        x = torch.randn(5, 6)
        for one in (model, fast):
            one.zero_grad()
            step(one, x)
        for one, two in zip(fast.buffers(), model.buffers(), strict=True):
            close(one, two)


def test_random_numbers_differ_in_each_replay(device: NullDevice) -> None:
    fast = compiled(lambda x: F.dropout(x, 0.5), device)
    x = torch.ones(1000)
    seen = [fast(x) for _ in range(6)]
    assert device.replays >= 4
    assert len({tuple(one.tolist()) for one in seen}) == 6


def test_seeds_decide_random_numbers(device: NullDevice) -> None:
    fast = compiled(lambda x: F.dropout(x, 0.5), device)
    x, runs = torch.ones(1000), []
    for _ in range(4):
        torch.manual_seed(3)
        runs.append([fast(x).clone() for _ in range(2)])
    for first, second in runs[1:]:
        assert torch.equal(first, runs[0][0]) and torch.equal(second, runs[0][1])


def test_sizes_that_change(device: NullDevice) -> None:
    fast = compiled(lambda x: torch.softmax(x, -1), device, dynamic="always")
    for _ in range(4):
        for size in (3, 5, 9):
            x = torch.randn(2, size)
            close(fast(x), torch.softmax(x, -1))
    assert len(device.graphs) == 3


def test_reset_gives_the_memory_back(device: NullDevice) -> None:
    model, fast = pair(device)
    with torch.no_grad():
        x = torch.randn(5, 6)
        for _ in range(3):
            y = fast(x)
        assert report_of(fast).graph_bytes > 0
        reset()
        gc.collect()
        assert report_of(fast).graphs == report_of(fast).graph_bytes == 0
        close(y, model(x))
        for _ in range(3):
            close(fast(x), model(x))


def test_on_the_cpu_the_mode_changes_nothing() -> None:
    fast = kiln.compile(lambda x: x + 1, mode="reduce-overhead")
    for _ in range(3):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert "cpu has no graphs" in report_of(fast).text()


def scenario(seed: int, model: Callable[..., Any], generator: torch.Generator) -> list[torch.Tensor]:
    """A random order of calls, backwards, holds, drops, writes; everything that is seen."""
    held: list[torch.Tensor] = []
    losses: list[torch.Tensor] = []
    seen: list[torch.Tensor] = []

    def pick(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    for _ in range(30):
        action = pick(9)
        if action <= 2:
            x = torch.randn(5 + pick(2), 6, generator=generator)
            y = model(x)
            held.append(y if action else y.detach()[1:])
            losses.append(y.square().mean())
        elif action == 3 and losses:
            losses.pop(pick(len(losses))).backward()
        elif action == 4 and held:
            del held[pick(len(held))]
        elif action == 5 and losses:
            del losses[pick(len(losses))]
        elif action == 6:
            model.zero_grad(set_to_none=bool(pick(2)))
        elif action == 7:
            with torch.no_grad():
                seen.append(model(torch.randn(5, 6, generator=generator)))
                for parameter in model.parameters():
                    parameter.mul_(0.99)
            losses.clear()  # their saved parameters have changed
        elif held:
            seen.append(held[pick(len(held))].detach().clone())
            seen.extend(one.clone() for one in gradients(model))
    return [*seen, *(one.detach() for one in held)]


@pytest.mark.parametrize("seed", range(8))
def test_random_orders(device: NullDevice, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_SHARE", 1000)
    model, fast = pair(device)
    expected = scenario(seed, model, torch.Generator().manual_seed(seed))
    found = scenario(seed, fast, torch.Generator().manual_seed(seed))
    assert len(expected) == len(found)
    for one, two in zip(found, expected, strict=True):
        close(one, two)
    assert device.replays > 3
