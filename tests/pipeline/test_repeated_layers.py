"""Equal layers go through the stages once; the plan is that of the full graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import kiln
from kiln.graph.ir.graph import Graph
from kiln.graph.passes.repeated_layers import find_layers, short_graph
from kiln.pipeline import differentiable, region
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import graph_to_plan, repeated_layers_to_plan, run_stages
from kiln.plan.plan import Plan
from kiln.plan.steps import AtenStep, LaunchStep
from kiln.plan.text import plan_text

Compiled = tuple[Graph, CompileContext]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Compiled]:
    """The compiled graphs, each with what its stages received."""
    found: list[Compiled] = []

    def record(graph: Graph, context: CompileContext, label: str = "") -> Plan:
        found.append((graph, context))
        return graph_to_plan(graph, context, label)

    for module in (region, differentiable):
        monkeypatch.setattr(module, "graph_to_plan", record)
    return found


class Layer(nn.Module):
    """A layer of a transformer, small."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.into(self.norm(x)).chunk(3, dim=-1)
        scores = (query @ key.transpose(-1, -2)) * 0.25 + mask
        x = x + self.out(scores.softmax(-1) @ value)
        return x + self.down(functional.gelu(self.up(self.last(x))))


class NormedLayer(nn.Module):
    """A layer whose result is normalised: nothing is summed up over layers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(functional.gelu(self.up(x))) * mask[0, 0])


class Stack(nn.Module):
    """`count` layers; `every`: all hidden states are results."""

    def __init__(self, count: int, every: bool = False, kind: type[nn.Module] = Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList([kind() for _ in range(count)])
        self.every = every

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = torch.zeros(x.shape[1], x.shape[1]).tril()
        states = []
        for layer in self.layers:
            x = layer(x, mask)
            states.append(x)
        return tuple(states) if self.every else (x.relu(),)


def assert_same_plan(graph: Graph, context: CompileContext) -> None:
    repeated = repeated_layers_to_plan(graph, context)
    assert repeated is not None
    expected = run_stages(graph, context)[-1]
    assert plan_text(repeated) == plan_text(expected)
    assert repeated == expected


@pytest.mark.parametrize("every", [False, True])
def test_plan_of_few_layers_is_that_of_all(graphs: list[Compiled], every: bool) -> None:
    model, x = Stack(9, every), torch.randn(2, 8, 16)
    with torch.no_grad():
        found, expected = kiln.compile(model, fullgraph=True)(x), model(x)
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value, other)
    ((graph, context),) = graphs
    assert_same_plan(graph, context)


def test_plan_of_a_training_step(graphs: list[Compiled]) -> None:
    model, x = Stack(8, kind=NormedLayer), torch.randn(2, 8, 16)
    kiln.compile(model, fullgraph=True)(x)[0].square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x)[0].square().sum().backward()
    for value, other in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(value, other.grad, rtol=1e-4, atol=1e-5)
    for graph, context in graphs:
        assert_same_plan(graph, context)


def test_sizes_may_be_symbols(graphs: list[Compiled]) -> None:
    model = Stack(7)
    compiled = kiln.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for length in (8, 5):
            x = torch.randn(2, length, 16)
            torch.testing.assert_close(compiled(x)[0], model(x)[0])
    ((graph, context),) = graphs
    assert_same_plan(graph, context)


def test_report_counts_all_layers(graphs: list[Compiled]) -> None:
    """Launches and calls of repeated layers count, though no stage saw them."""
    model, x = Stack(12), torch.randn(2, 8, 16)
    with torch.no_grad():
        report = kiln.explain(model)(x)
    said = report.launches, report.library_calls
    ((graph, context),) = graphs
    steps = run_stages(graph, context)[-1].steps
    assert said == tuple(sum(isinstance(step, kind) for step in steps) for kind in (LaunchStep, AtenStep))


class Odd(nn.Module):
    """Layers that are alike but for one thing."""

    def __init__(self, kind: str, count: int = 8) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(count)])
        if kind == "tied pair":
            self.layers[4] = self.layers[2]
        if kind == "one of all":
            self.layers = nn.ModuleList([self.layers[0]] * count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [x, x]
        for layer in self.layers:
            below = states[-2] if self.kind == "two back" else x
            states.append(layer(states[-1]).tanh() + below)
        return states[4] * states[-1] if self.kind == "read later" else states[-1]


@pytest.mark.parametrize("kind", ["two back", "tied pair", "read later", "one of all"])
def test_what_is_not_alike_goes_the_long_way(graphs: list[Compiled], kind: str) -> None:
    model, x = Odd(kind), torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(kiln.compile(model, fullgraph=True)(x), model(x))
    ((graph, context),) = graphs
    assert repeated_layers_to_plan(graph, context) is None


def test_four_layers_are_kept(graphs: list[Compiled]) -> None:
    model, x = Stack(20), torch.randn(2, 8, 16)
    with torch.no_grad():
        kiln.compile(model, fullgraph=True)(x)
    ((graph, _),) = graphs
    layers, short = find_layers(graph), short_graph(graph)
    assert layers is not None and short is not None
    assert layers.count >= 18 and len(graph.nodes) - len(short.graph.nodes) == layers.left_out * layers.period
    assert find_layers(short.graph) is None


def test_depth_costs_no_stage_anything(graphs: list[Compiled]) -> None:
    """The stages see as many nodes, and write the same kernels, for 12 layers as for 36."""
    for count in (12, 36):
        with torch.no_grad():
            kiln.compile(Stack(count), fullgraph=True)(torch.randn(2, 8, 16))
    few, many = [short_graph(graph) for graph, _ in graphs]
    assert few is not None and many is not None
    assert len(few.graph.nodes) == len(many.graph.nodes)
    plans = [repeated_layers_to_plan(graph, context) for graph, context in graphs]
    assert plans[0] is not None and plans[1] is not None
    assert plans[0].kernels == plans[1].kernels
    assert len(plans[1].steps) > 2 * len(plans[0].steps)


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_of_any_sizes_is_compiled_once(batch_first: bool) -> None:
    """Its products are not those that torch 2.11 folds by plain sizes."""
    model = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first, dropout=0.0)
    compiled = kiln.compile(model, fullgraph=True, dynamic=True)
    for batch, length in [(2, 6), (3, 7), (5, 4)]:
        x = torch.randn(batch, length, 16)
        torch.testing.assert_close(compiled(x), model(x))
    assert compiled.report().compiles == 1
