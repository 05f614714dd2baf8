"""Which parts of a graph go to another compiler: their text, convexity, number, and what is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import without_dead_code
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.offload.calls import part_graph, with_calls
from kiln.graph.offload.part import GraphPart
from kiln.graph.offload.split import Split, split
from kiln.graph.prims.table import Kind
from kiln.runtime.offloaded import OffloadedRun, PartRun
from tests.backends.random_graphs import Interpreting, random_graph
from tests.graph.passes.graphs import parsed


class OnlySums:
    """Takes additions and products."""

    name = "sums"

    def refusal(self, node: Node) -> str:
        return "" if node.op.name in ("add", "mul", "permute", "constant") else "only add and mul"

    def compile(self, part: GraphPart) -> PartRun:
        raise NotImplementedError


def test_text(golden: Callable[..., None]) -> None:
    graph = parsed("""
        graph(%0: f32[4, 4] "x", %1: f32[4, 4] "y"):
            %2: f32[] = constant(value=2.0, dtype=f32, device=cpu)
            %3: f32[4, 4] = mul(%0, %2)
            %4: f32[4, 4] = add(%3, %1)
            %5: f32[4, 4] = cumsum(%4, axis=0)
            %6: f32[4, 4 | 1, 4] = permute(%4, dims=(1, 0))
            %7: f32[4, 4] = add(%5, %6)
            %8: f32[4, 4] = mul(%7, %2)
            %9: f32[4, 4] = tanh(%8)
            %10: f32[4, 4] = add(%9, %2)
            return %8, %6, %10
    """)
    found = split(graph, OnlySums())
    texts = [found.text(), *[graph_text(part_graph(part)) for part in found.parts]]
    golden("\n\n".join([*texts, graph_text(with_calls(found, lambda part, symbols: 7))]))


def reachable(graph: Graph) -> dict[Node, set[Node]]:
    """What each node is computed from, itself included."""
    found: dict[Node, set[Node]] = {}
    for node in (*graph.inputs, *graph.nodes):
        found[node] = {node}.union(*[found[value] for value in node.inputs])
    return found


def free(graph: Graph) -> set[Node]:
    """What any part may compute again."""
    return {node for node in graph.nodes if not node.inputs or node.op.kind is Kind.VIEW}


def assert_convex(found: Split) -> None:
    """No path leaves a part and comes back."""
    sources = reachable(found.graph)
    for part in found.parts:
        inside = set(part.nodes)
        for node in found.graph.nodes:
            if node not in inside and sources[node] & (inside - free(found.graph)):
                later = [user for user in inside if node in sources[user]]
                assert not later, f"a path through {node} leaves the part and comes back"


def run_split(graph: Graph, backend: Interpreting, inputs: list[torch.Tensor]) -> list[object]:
    found = split(graph, backend)
    assert_convex(found)
    runs: list[OffloadedRun] = []

    def compile_part(part: Graph, symbols: tuple[object, ...]) -> int:
        verify(part, "split")
        runs.append(OffloadedRun(backend.compile(GraphPart(part, (), {}, {}))))
        return runs[-1].number

    changed = with_calls(found, compile_part)
    verify(changed, "split")
    torch.manual_seed(0)
    result = interpret(changed, list(inputs))
    return [*result.outputs, *[value for _, value in result.written]]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_random_graphs(share: float) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(4, 6) for _ in range(3)]
    parts = 0
    for seed in range(60):
        graph, _ = without_dead_code(random_graph(seed))
        torch.manual_seed(0)
        expected = interpret(graph, list(inputs))
        backend = Interpreting(seed, share)
        found = run_split(graph, backend, inputs)
        for value, other in zip(found, [*expected.outputs, *[x for _, x in expected.written]], strict=True):
            assert isinstance(value, torch.Tensor) and torch.equal(value, other)
        parts += len(backend.parts)
    assert parts > 40


def test_what_has_an_effect_stays_although_nothing_reads_it() -> None:
    graph = parsed("""
        graph(%0: f32[4] "x", %1: b8[] "c"):
            %2: f32[4] = mul(%0, %0)
            %3: f32[4] = add(%2, %0)
            %4: f32[4] = tanh(%0)
            %5: () = assert(%1, message="no")
            return %3
    """)
    text = graph_text(with_calls(split(graph, OnlySums()), lambda part, symbols: 7))
    assert "assert(%1" in text and "kiln_offload.run" in text and "tanh" not in text
