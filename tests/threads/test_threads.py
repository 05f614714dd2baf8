"""Compiling in one thread while others call: results are eager's, whatever the interleaving."""

from __future__ import annotations

import gc
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.capture.interpreter.variables import dtensor
from kiln.support.gc_pause import GcPause


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def branches(x: Tensor, scale: float) -> Tensor:
    y = torch.sin(x) * scale
    if y.sum() > 0:
        y = y + x.shape[0]
    return y * 2


def pointwise(x: Tensor, scale: float) -> Tensor:
    return torch.tanh(x) * scale + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return self.layers(x) * scale


def gradients(function: Callable[..., Tensor], x: Tensor, scale: float) -> list[Tensor]:
    x = x.clone().requires_grad_()
    result = function(x, scale)
    return [result.detach(), *torch.autograd.grad(result.sum(), [x])]


class Workers:
    """Threads that run until one of them fails or all are done."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.stop = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[[random.Random], None], count: int) -> None:
        def run(seed: int) -> None:
            chance = random.Random(seed)
            try:
                for _ in range(count):
                    if self.stop.is_set():
                        return
                    work(chance)
            except BaseException as problem:
                self.problems.append(f"{type(problem).__name__}: {problem}")
                self.stop.set()

        self.threads.append(threading.Thread(target=run, args=(len(self.threads),)))

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        assert self.problems == []


def stress(backend: str, calls: int, compiles: int) -> None:
    programs: list[tuple[Any, Any]] = [
        (kiln.compile(item, backend=backend, options={"variants": 64}), item) for item in (branches, pointwise, Net())
    ]

    def call(chance: random.Random) -> None:
        compiled, original = chance.choice(programs)
        x = torch.randn(chance.randint(1, 6), 4)
        scale = float(chance.choice((1, 2, -1)))
        if chance.random() < 0.3:
            got, expected = gradients(compiled, x, scale), gradients(original, x, scale)
        else:
            with torch.no_grad():
                got, expected = [compiled(x, scale)], [original(x, scale)]
        for value, other in zip(got, expected, strict=True):
            torch.testing.assert_close(value, other)

    def compile_fresh(chance: random.Random) -> None:
        offset = chance.randint(0, 3)
        compiled = kiln.compile(lambda x: torch.cos(x) - offset, backend=backend)
        x = torch.randn(chance.randint(1, 6), 4)
        torch.testing.assert_close(compiled(x), torch.cos(x) - offset)

    workers = Workers()
    for _ in range(3):
        workers.start(call, calls)
    workers.start(compile_fresh, compiles)
    workers.run()
    for compiled, _ in programs:
        assert kiln.report_of(compiled).eager == 0


def test_one_thread_compiles_and_three_call() -> None:
    stress("eager", calls=60, compiles=20)


def test_a_module_that_another_thread_is_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in `sys.modules`, but has no names yet."""
    module = types.ModuleType(dtensor.TENSOR)
    module.__spec__ = ModuleSpec(dtensor.TENSOR, None)
    module.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, dtensor.TENSOR, module)
    compiled = kiln.compile(lambda x: torch.sin(x) + 3, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.sin(torch.ones(2)) + 3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_many_calls_in_many_threads(backend: str) -> None:
    stress(backend, calls=2000, compiles=300)


def test_threads_meet_at_the_first_call() -> None:
    """All threads miss at once: one compiles while the others run the original."""
    for _ in range(5):
        compiled = kiln.compile(lambda x: torch.exp(x) + 1, backend="eager")
        workers, x = Workers(), torch.randn(5)
        barrier = threading.Barrier(4)

        def call(chance: random.Random, compiled: Any = compiled, barrier: Any = barrier, x: Tensor = x) -> None:
            barrier.wait()
            assert torch.equal(compiled(x), torch.exp(x) + 1)

        for _ in range(4):
            workers.start(call, 1)
        workers.run()
        assert kiln.report_of(compiled).compiles == 1


def test_threads_meet_at_the_first_backward() -> None:
    """Each mask has its own backward, which several threads may compile at once."""
    compiled, workers = kiln.compile(lambda x, w: torch.tanh(x * w).sum()), Workers()
    compiled(torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True))

    def call(chance: random.Random) -> None:
        x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        wanted = chance.choice(([x], [w], [x, w]))
        ours = torch.autograd.grad(compiled(x, w), wanted)
        theirs = torch.autograd.grad(torch.tanh(x * w).sum(), wanted)
        for result, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(result, other)

    for _ in range(4):
        workers.start(call, 20)
    workers.run()


def test_garbage_collection_returns_after_the_last_compile_if_it_was_on() -> None:
    pause = GcPause()
    try:
        for on in (True, False):
            gc.enable() if on else gc.disable()
            with pause():
                with pause():
                    assert not gc.isenabled()
                assert not gc.isenabled()
            assert gc.isenabled() is on
    finally:
        gc.enable()
