"""Compilers of ATen graphs get forward and backward; backends of installed packages are found by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from torch import nn

import kiln
from kiln.backends import aot, registry
from kiln.runtime.offloaded import RUNS

pytestmark = pytest.mark.unrecorded


class Graphs:
    """A compiler that keeps what it gets, with the sizes of the example inputs, and runs it."""

    def __init__(self, boxed: bool = False) -> None:
        self.seen: list[tuple[torch.fx.GraphModule, list[Any]]] = []
        self.boxed = boxed

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., object]:
        self.seen.append((module, [x.shape if isinstance(x, torch.Tensor) else x for x in inputs]))
        module(*inputs)
        if not self.boxed:
            return module.forward
        run = lambda given: module(*given)  # noqa: E731
        run._boxed_call = True  # type: ignore[attr-defined]
        return run


@pytest.mark.parametrize("boxed", [False, True])
def test_forward_and_backward(boxed: bool) -> None:
    forward, backward = Graphs(boxed), Graphs(boxed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    compiled = kiln.compile(model, backend=aot(forward, backward))
    for rows in (3, 5, 6):
        x = torch.randn(rows, 4)
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected)
    assert len(forward.seen) == len(backward.seen) == 2  # of 3 rows, of any number of rows
    assert [node.target for node in forward.seen[0][0].graph.nodes if "addmm" in str(node.target)]
    assert torch.Size([5, 4]) in forward.seen[1][1]


def test_reductions_of_scatters_take_what_is_there() -> None:
    def program(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        return [x.scatter_reduce(1, index, source, kind) for kind in ("amax", "amin", "prod", "mean", "sum")]

    arguments = torch.tensor([[5.0, -5.0, 0.5]]), torch.tensor([[0, 1, 2]]), torch.tensor([[1.0, 1.0, 3.0]])
    compiled = kiln.compile(program, backend=aot(Graphs()))
    torch.testing.assert_close(compiled(*arguments), program(*arguments))


def test_one_operation_and_random_numbers() -> None:
    graphs = Graphs()
    backend = aot(graphs)
    assert torch.equal(kiln.compile(lambda x: x + 1, backend=backend)(torch.ones(2)), torch.full((2,), 2.0))
    assert len(graphs.seen) == 1

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) * 2 + x.sin().cos() + x.shape[0]

    compiled = kiln.compile(noisy, backend=backend, dynamic=True, options={"random": "eager"})
    for rows in (3, 4):
        torch.manual_seed(0)
        expected = noisy(torch.ones(rows))
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(torch.ones(rows)), expected)


def loaded_from_a_package(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., object]:
    return lambda *given: [value * 0 for value in module(*given)]


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("zeros", f"{__name__}:loaded_from_a_package", registry.GROUP),
        EntryPoint("kiln", "kiln.api.torch_backend:kiln", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries if group == registry.GROUP else [])
    assert "zeros" in kiln.list_backends() and registry.find_backend("kiln") is None
    assert torch.equal(kiln.compile(lambda x: x + 1, backend="zeros")(torch.ones(2)), torch.zeros(2))


def test_parts_live_as_long_as_what_calls_them() -> None:
    """The backward runs after the compiled module is gone; then nothing is left."""
    gc.collect()
    before = len(RUNS)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = kiln.compile(model, backend=aot(Graphs()))
    loss = compiled(torch.ones(2, 4)).sum()
    del compiled
    loss.backward()
    assert model[0].weight.grad is not None and len(RUNS) > before
    del loss, model
    kiln.reset()
    gc.collect()
    assert len(RUNS) == before
