"""Tests of passes by text: `before` and `after` in a block each, and both through the interpreter.

check_pass(Cse(), '''
    graph(%0: f32[4] "x"):
        %1: f32[4] = neg(%0)
        %2: f32[4] = neg(%0)
        return %1, %2
''', '''
    graph(%0: f32[4] "x"):
        %1: f32[4] = neg(%0)
        return %1, %1
''')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import dedent

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from kiln.graph.passes.dead_code import DeadCode
from kiln.graph.passes.manager import GraphPass, PassContext
from kiln.symbolic import Symbol, evaluate
from kiln.tensor.spec import TensorSpec

CONTEXT = PassContext(GuardFreeOracle())


def parsed(text: str) -> Graph:
    graph = parse_graph(dedent(text).strip())
    verify(graph, "test")
    return graph


def on_gpu(text: str) -> Graph:
    """The graph with all values on a GPU; `text` leaves the device out."""
    return parsed(text.replace("]", " @cuda:0]").replace("device=cpu", "device=cuda:0"))


def on_cpu(graph: Graph) -> Graph:
    return parse_graph(graph_text(graph).replace(" @cuda:0", "").replace("@cuda:0", "").replace("cuda:0", "cpu"))


def check_pass(
    step: GraphPass, before: str, after: str, inputs: Sequence[torch.Tensor] | None = None, tolerance: float = 1e-5
) -> None:
    """After the pass and the removal of dead code the text is `after`, and the values are those of `before`."""
    graph = parsed(before)
    changed, changes = step.run(graph, CONTEXT)
    verify(changed, step.name)
    changed, _ = DeadCode().run(changed, CONTEXT)
    assert graph_text(changed) == dedent(after).strip()
    assert changes
    same_values(graph, changed, inputs, tolerance)


def check_unchanged(step: GraphPass, *graphs: str) -> None:
    for text in graphs:
        graph = parsed(text)
        assert step.run(graph, CONTEXT) == (graph, 0)


def same_values(
    before: Graph,
    after: Graph,
    inputs: Sequence[torch.Tensor] | None = None,
    tolerance: float = 1e-5,
    symbols: Mapping[Symbol, int] | None = None,
) -> None:
    """Equal outputs and writes on `inputs` (random ones by default), outputs with equal strides; 0: the same bits."""
    torch.manual_seed(0)
    given = [drawn(node.tensor, symbols or {}) for node in before.inputs] if inputs is None else inputs
    expected, found = interpret(before, given), interpret(after, given)
    for a, b in zip(expected.outputs, found.outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert a.stride() == b.stride()
        assert tolerance or not a.is_floating_point() or torch.equal(a.signbit(), b.signbit())
    for (_, a), (_, b) in zip(expected.written, found.written, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def drawn(spec: TensorSpec, symbols: Mapping[Symbol, int]) -> torch.Tensor:
    """Small whole numbers for 16 bits and integers, else normal ones, in the layout of `spec`."""
    sizes, strides = ([evaluate(value, symbols) for value in values] for values in (spec.sizes, spec.strides))
    wide = spec.dtype in (torch.float32, torch.float64)
    values = torch.randn(sizes) * 4 if wide else torch.randint(-8, 9, sizes)
    return torch.empty_strided(sizes, strides, dtype=spec.dtype).copy_(values)
