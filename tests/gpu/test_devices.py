"""Two GPUs: programs on the one that is not current, and on both."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kiln
from kiln.api import report_of
from kiln.plan.errors import IndexOutOfRange

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
MODES = pytest.mark.parametrize("mode", ["default", "reduce-overhead"])


@pytest.fixture(autouse=True)
def current_device_stays() -> Iterator[None]:
    torch.manual_seed(0)
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0
    for device in (FIRST, SECOND):
        torch.cuda.synchronize(device)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 128), nn.LayerNorm(128), nn.Linear(128, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.norm(self.first(x))))


def pair(mode: str, device: torch.device) -> tuple[nn.Module, Any]:
    model = Net().to(device)
    return model, kiln.compile(copy.deepcopy(model), mode=mode, fullgraph=True)


@MODES
@pytest.mark.parametrize("current", [0, 1])
def test_a_model_on_the_other_device(mode: str, current: int) -> None:
    """Held results while another device is current; no memory stays on that device."""
    device = (SECOND, FIRST)[current]
    model, fast = pair(mode, device)
    with torch.no_grad(), torch.cuda.device(current):
        inputs = [torch.randn(32, 64, device=device) for _ in range(6)]
        gc.collect()
        before = torch.cuda.memory_allocated(current)
        held = [fast(x) for x in inputs]
        assert torch.cuda.current_device() == current and torch.cuda.memory_allocated(current) <= before
        for x, y in zip(inputs, held, strict=True):
            assert y.device == device
            torch.testing.assert_close(y, model(x), rtol=1e-3, atol=1e-4)
    report = report_of(fast)
    assert report.graphs == int(mode == "reduce-overhead") and not report.ungraphed, report.text()


@MODES
def test_training_on_the_other_device(mode: str) -> None:
    model, fast = pair(mode, SECOND)
    for _ in range(4):
        x = torch.randn(32, 64, device=SECOND)
        for net in (model, fast):
            net.zero_grad()
            net(x).square().mean().backward()
        for ours, theirs in zip(fast.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


@MODES
def test_arguments_on_two_devices(mode: str) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = torch.sin(x) + 1, torch.cos(y) * 2
        return a, b, a + b.to(x.device), (x.to(y.device) * b).sum(-1)

    fast = kiln.compile(program, mode=mode, fullgraph=True)
    for rows in (64, 64, 64):
        x, y = torch.randn(rows, 70, device=FIRST), torch.randn(rows, 70, device=SECOND)
        for got, expected in zip(fast(x, y), program(x, y), strict=True):
            torch.testing.assert_close(got, expected)


def test_gradients_on_two_devices() -> None:
    first, last = nn.Linear(32, 32).to(FIRST), nn.Linear(32, 8).to(SECOND)

    def program(x: Tensor) -> Tensor:
        return last(F.gelu(first(x)).to(SECOND)).square().mean()

    fast = kiln.compile(program, fullgraph=True)
    x = torch.randn(16, 32, device=FIRST)
    parameters = [*first.parameters(), *last.parameters()]
    expected, got = (torch.autograd.grad(run(x), parameters) for run in (program, fast))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_the_current_device_may_change() -> None:
    """Devices without an index are the current one of each call."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, torch.ones(8, device="cuda") * 2

    fast = kiln.compile(program, fullgraph=True)
    x = torch.zeros(8, device=SECOND)
    for current in (0, 1, 0, 1):
        with torch.cuda.device(current):
            got, made = fast(x)
        assert got.device == SECOND and made.device == torch.device("cuda", current)
        assert torch.equal(got, x + 1) and torch.equal(made, torch.full((8,), 2.0, device=made.device))


@MODES
def test_random_numbers_are_those_of_the_device(mode: str) -> None:
    fast = kiln.compile(lambda x: F.dropout(x, 0.5), mode=mode, fullgraph=True)
    x = torch.ones(4096, device=SECOND)
    for _ in range(3):
        fast(x)
    generators = torch.cuda.default_generators
    before, runs = generators[0].get_offset(), []
    for _ in range(2):
        generators[1].manual_seed(3)
        runs.append([fast(x).clone() for _ in range(2)])
    assert generators[0].get_offset() == before
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])


@MODES
def test_a_wrong_index_on_the_other_device(mode: str) -> None:
    fast = kiln.compile(lambda table, index: table[index] * 2, mode=mode, fullgraph=True)
    table, good = torch.randn(10, 4, device=SECOND), torch.tensor([1, 3], device=SECOND)
    for _ in range(3):
        torch.testing.assert_close(fast(table, good), table[good] * 2)
    with pytest.raises(IndexOutOfRange):
        fast(table, good + 100)
        torch.cuda.synchronize(SECOND)
        fast(table, good)
    torch.testing.assert_close(fast(table, good), table[good] * 2)


def test_streams_of_the_other_device() -> None:
    fast = kiln.compile(lambda x: torch.sin(x) * 2, fullgraph=True)
    x = torch.randn(1 << 20, device=SECOND)
    expected = torch.sin(x) * 2
    fast(x)
    torch.cuda.synchronize(SECOND)
    side = torch.cuda.Stream(SECOND)
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        y = fast(x)
        assert not side.query()
    assert torch.cuda.current_stream(SECOND).query(), "the plan ran on the wrong stream"
    side.synchronize()
    assert torch.equal(y, expected)


def test_a_thread_per_device() -> None:
    model, fast = pair("default", FIRST)
    models = [fast, kiln.compile(copy.deepcopy(model).to(SECOND), fullgraph=True)]
    x = torch.randn(32, 64, device=FIRST)
    expected = model(x)
    torch.cuda.synchronize()
    found: dict[int, Tensor] = {}

    def work(number: int) -> None:
        torch.cuda.set_device(number)
        mine = x.to(number)
        for _ in range(20):
            loss = models[number](mine)
            loss.sum().backward()
        found[number] = loss.detach()

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (0, 1):
        torch.testing.assert_close(found[number].to(FIRST), expected, rtol=1e-3, atol=1e-4)
