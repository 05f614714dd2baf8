"""What users do with compiled functions, against eager: run on the null device, and on a GPU where there is one."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import kiln
from kiln.api import report_of, reset, session_of
from kiln.report import Report
from kiln.runtime.cuda_graphs.graphs import CudaGraphs
from tests.cuda_graphs.null_device import NullDevice


@dataclass
class Setup:
    """The device of the programs; `null` replaces its graphs."""

    device: torch.device
    null: NullDevice | None = None

    def compiled(self, function: Any, **options: Any) -> Any:
        made = kiln.compile(function, options={"cuda_graphs": True, "cache": False, **options})
        graphs = session_of(made).graphs
        assert isinstance(graphs, CudaGraphs)
        if self.null is not None:
            graphs.make_device = lambda place: self.null
        return made

    def pair(self) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model = Net().to(self.device)
        return model, self.compiled(copy.deepcopy(model))

    def randn(self, *sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=self.device)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def same_gradients(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(gradients(one), gradients(other), strict=True):
        close(ours, theirs)


def step(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    return loss


Scenario = Callable[[Setup], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def graphed(compiled: Any, count: int) -> Report:
    """Assert that graphs were recorded and nothing was refused."""
    report = report_of(compiled)
    assert report.graphs == count and not report.ungraphed, report.text()
    return report


@scenario
def inference_with_held_results(setup: Setup) -> None:
    model, fast = setup.pair()
    with torch.no_grad():
        inputs = [setup.randn(5, 6) for _ in range(8)]
        held = [fast(x) for x in inputs]
        for x, y in zip(inputs, held, strict=True):
            close(y, model(x))
    assert "CUDA graphs: 1, " in graphed(fast, 1).text()


@scenario
def training_steps(setup: Setup) -> None:
    model, fast = setup.pair()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, fast)]
    for _ in range(6):
        x = setup.randn(5, 6)
        losses = []
        for net, optimizer in zip((model, fast), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(step(net, x))
            optimizer.step()
        close(*losses)
    graphed(fast, 2)


def gradient_accumulation(setup: Setup, *, to_none: bool) -> None:
    model, fast = setup.pair()
    for n in range(9):
        x = setup.randn(5, 6)
        step(model, x)
        step(fast, x)
        same_gradients(fast, model)
        if n % 3 == 2:
            model.zero_grad(set_to_none=to_none)
            fast.zero_grad(set_to_none=to_none)
    assert report_of(fast).graphs >= 2


SCENARIOS["accumulation_none"] = partial(gradient_accumulation, to_none=True)
SCENARIOS["accumulation_zeros"] = partial(gradient_accumulation, to_none=False)


def several_forwards(setup: Setup, *, order: tuple[int, ...]) -> None:
    model, fast = setup.pair()
    for _ in range(5):
        inputs = [setup.randn(5, 6) for _ in order]
        for net in (model, fast):
            net.zero_grad()
            losses = [net(x).square().mean() for x in inputs]
            for number in order:
                losses[number].backward()
        same_gradients(fast, model)


SCENARIOS["forwards_first_in_first_out"] = partial(several_forwards, order=(0, 1))
SCENARIOS["forwards_last_in_first_out"] = partial(several_forwards, order=(1, 0))
SCENARIOS["forwards_mixed"] = partial(several_forwards, order=(1, 2, 0))


@scenario
def a_sum_of_forwards(setup: Setup) -> None:
    model, fast = setup.pair()
    for _ in range(5):
        inputs = [setup.randn(5, 6) for _ in range(3)]
        for net in (model, fast):
            net.zero_grad()
            sum(net(x).square().mean() for x in inputs).backward()
        same_gradients(fast, model)


@scenario
def retained_graphs(setup: Setup) -> None:
    model, fast = setup.pair()
    for _ in range(5):
        x = setup.randn(5, 6)
        for net in (model, fast):
            net.zero_grad()
            y = net(x)
            y.sum().backward(retain_graph=True)
            y.square().sum().backward()
        same_gradients(fast, model)


@scenario
def compiled_after_compiled(setup: Setup) -> None:
    def after(y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(y) * 2

    model, fast = setup.pair()
    other = setup.compiled(after)
    for _ in range(6):
        x = setup.randn(5, 6)
        for item, then in ((model, after), (fast, other)):
            item.zero_grad()
            then(item(x)).sum().backward()
        same_gradients(fast, model)


@scenario
def gradients_that_are_kept(setup: Setup) -> None:
    model, fast = setup.pair()
    kept: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    for _ in range(5):
        x = setup.randn(5, 6)
        for net in (model, fast):
            net.zero_grad()
            step(net, x)
        kept.append((gradients(fast), gradients(model)))
    for ours, theirs in kept:
        for one_gradient, other in zip(ours, theirs, strict=True):
            close(one_gradient, other)


@scenario
def statistics_in_training(setup: Setup) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()).to(setup.device)
    fast = setup.compiled(copy.deepcopy(model))
    for _ in range(6):
        x = setup.randn(5, 6)
        for net in (model, fast):
            net.zero_grad()
            step(net, x)
        for ours, theirs in zip(fast.buffers(), model.buffers(), strict=True):
            close(ours, theirs)


@scenario
def dropout_differs_in_each_replay(setup: Setup) -> None:
    fast = setup.compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device=setup.device)
    seen = [fast(x) for _ in range(6)]
    assert len({tuple(item.tolist()) for item in seen}) == 6
    graphed(fast, 1)


@scenario
def seeds_decide_dropout(setup: Setup) -> None:
    fast = setup.compiled(lambda x: F.dropout(x, 0.5))
    x, runs = torch.ones(1000, device=setup.device), []
    for _ in range(4):
        torch.manual_seed(3)
        runs.append([fast(x).clone() for _ in range(2)])
    for first, second in runs[1:]:
        assert torch.equal(first, runs[0][0]) and torch.equal(second, runs[0][1])


@scenario
def dropout_backward_sees_the_mask_of_its_forward(setup: Setup) -> None:
    fast = setup.compiled(lambda x: F.dropout(x * 3, 0.5))
    for _ in range(5):
        x = torch.ones(1000, device=setup.device, requires_grad=True)
        one, other = fast(x), fast(x)
        (gradient,) = torch.autograd.grad(one.sum(), x)
        close(gradient, one.detach())
        (gradient,) = torch.autograd.grad(other.sum(), x)
        close(gradient, other.detach())


@scenario
def sizes_that_change(setup: Setup) -> None:
    fast = setup.compiled(lambda x: torch.softmax(x, -1), dynamic="always")
    for _ in range(4):
        for size in (3, 5, 9):
            x = setup.randn(2, size)
            close(fast(x), torch.softmax(x, -1))
    graphed(fast, 3)


@scenario
def reset_gives_the_memory_back(setup: Setup) -> None:
    model, fast = setup.pair()
    with torch.no_grad():
        x = setup.randn(5, 6)
        for _ in range(3):
            y = fast(x)
        assert report_of(fast).graph_bytes > 0
        reset()
        gc.collect()
        assert report_of(fast).graphs == report_of(fast).graph_bytes == 0
        close(y, model(x))
        for _ in range(3):
            close(fast(x), model(x))


class Play:
    """A random sequence of calls, backwards, holds, drops and writes; `seen`: all that a user can observe."""

    def __init__(self, setup: Setup, model: Any, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.setup, self.model = setup, model
        self.held: list[torch.Tensor] = []
        self.losses: list[torch.Tensor] = []
        self.seen: list[torch.Tensor] = []

    def pick(self, count: int) -> int:
        return int(torch.randint(count, (1,), generator=self.generator))

    def input(self) -> torch.Tensor:
        return torch.randn(5 + self.pick(2), 6, generator=self.generator).to(self.setup.device)

    def call(self) -> None:
        y = self.model(self.input())
        self.held.append(y if self.pick(2) else y.detach()[1:])
        self.losses.append(y.square().mean())

    def backward(self) -> None:
        if self.losses:
            self.losses.pop(self.pick(len(self.losses))).backward()

    def drop(self) -> None:
        for kept in (self.held, self.losses):
            if kept and self.pick(2):
                del kept[self.pick(len(kept))]

    def zero(self) -> None:
        self.model.zero_grad(set_to_none=bool(self.pick(2)))

    def write(self) -> None:
        """An optimizer step: it changes parameters that were saved."""
        self.losses.clear()
        with torch.no_grad():
            self.seen.append(self.model(self.input()))
            for parameter in self.model.parameters():
                parameter.mul_(0.99)

    def write_result(self) -> None:
        if self.held and not self.losses:
            with torch.no_grad():
                self.held[self.pick(len(self.held))].add_(1)

    def look(self) -> None:
        self.seen.extend(result.detach().clone() for result in self.held)
        self.seen.extend(gradient.clone() for gradient in gradients(self.model))

    def run(self, length: int) -> list[torch.Tensor]:
        actions = (
            self.call, self.call, self.call, self.backward, self.backward,
            self.drop, self.zero, self.write, self.write_result, self.look,
        )  # fmt: skip
        for _ in range(length):
            actions[self.pick(len(actions))]()
        self.look()
        return self.seen


def random_order(setup: Setup, seed: int, length: int = 40) -> None:
    """The same sequence of actions, eager and compiled."""
    model, fast = setup.pair()
    expected, found = Play(setup, model, seed).run(length), Play(setup, fast, seed).run(length)
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)
    assert report_of(fast).graphs > 0
