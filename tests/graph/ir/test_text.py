"""Printing and parsing graphs, and the verifier's messages for invalid ones."""

from __future__ import annotations

import pytest
import torch

from kiln.graph.ir.errors import GraphSyntaxError, InvalidGraph, WrongPrediction
from kiln.graph.ir.fx_view import fx_view
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.rewrite import rewrite, users_of, without_dead_code
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify
from tests.graph.prims.layouts import STATIC

FULL = """\
graph step(%0: f32[4, 8] "x", %1: f32[8] "self.bias", %2: int(s0) "n"):
    %3: f32[4, 8] = add(%0, %1)  # torch.add [3] at model.py:41, in Net.forward (backward)
    %4: f32[4, 4] = aten.mm.default(%3, %0)
    %5: f32[s0, 4 | 2*s0, s0 + 1 at 7 @cuda:0] = aten.foo.default((%3, %0), -1, x=-inf, y=(nan, 1e-05), d=cuda:0)
    %6: (f32[4, 4], none) = region(%4, body=@0, tag="checkpoint # \\"")
        @0 = graph(%0: f32[4, 4] "y"):
            %1: f32[4, 4] = neg(%0)
            return %1
    %7: f32[] = constant(value=complex(1.0, -2.0), dtype=c64, device=cpu)
    %8: f32[4] = opaque lib.op.default(%7, s0 + 1, (s0 + 1)%7, s0%4, memory_format=torch.channels_last)
    %9: () = assert(%8, message="a")
    write %0 <- %3
    return %3 requires_grad, %4 is input 0, %4 views input 0 as f32[8, 4] requires_grad"""

MLP = """\
graph(%0: f32[s0, 8] "x", %1: f32[16, 8] "w", %2: f32[16] "b"):
    %3: f32[8, 16 | 1, 8] = permute(%1, dims=(1, 0))
    %4: f32[s0, 16] = aten.mm.default(%0, %3)
    %5: f32[s0, 16] = add(%4, %2)
    %6: f32[] = constant(value=0.0, dtype=f32, device=cpu)
    %7: f32[s0, 16] = maximum(%5, %6)
    %8: f32[16*s0] = view(%7, sizes=(16*s0,))
    %9: i64[2*s0 + 1] = iota(length=2*s0 + 1, start=0, step=1, dtype=i64, device=cpu)
    return %8, %9"""


def test_round_trip() -> None:
    assert graph_text(parse_graph(FULL)) == FULL
    assert graph_text(parse_graph(MLP)) == MLP


def test_neighbourhood() -> None:
    graph = parse_graph(MLP)
    text = graph_text(graph, around=graph.nodes[3], lines=1)
    assert [line.split(":")[0].strip() for line in text.split("\n")[1:-1]] == ["%5", "%6", "%7"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("add(%4, %2)", "add(%4, %99)", "there is no value %99"),
        ("add(", "addd(", "there is no op 'addd'"),
        ("add(%4, %2)", "add(%4, 2)", "expected a value"),
        ("f32[s0, 16] = add", "g32[s0, 16] = add", "not a spec"),
        ("return %8, %9", "", "ends inside a graph"),
        ("add(%4, %2)", "region(%4, body=@0)", "there is no nested graph @0"),
    ],
)
def test_syntax_errors_name_the_line(old: str, new: str, says: str) -> None:
    with pytest.raises(GraphSyntaxError, match=says):
        parse_graph(MLP.replace(old, new))


def test_interpret_symbolic() -> None:
    x, w, b = torch.randn(5, 8), torch.randn(16, 8), torch.randn(16)
    graph = parse_graph(MLP)
    verify(graph, "test")
    flat, counted = interpret(graph, [x, w, b]).outputs
    assert torch.equal(flat, torch.relu(x @ w.t() + b).flatten())
    assert torch.equal(counted, torch.arange(11))
    module = fx_view(graph)
    assert torch.equal(module(x, w, b)[0], flat)
    assert torch.equal(module(torch.randn(3, 8), w, b)[1], torch.arange(7))


def test_interpret_writes() -> None:
    graph = parse_graph("""\
graph(%0: f32[2] "x"):
    %1: f32[2] = neg(%0)
    write %0 <- %1
    return %0""")
    x = torch.tensor([1.0, 2.0])
    run = interpret(graph, [x])
    assert run.written[0][0] == 0
    assert torch.equal(run.written[0][1], -x)
    assert torch.equal(run.outputs[0], x)


def test_interpret_nested() -> None:
    graph = parse_graph("""\
graph(%0: b8[] "c", %1: f32[2] "x"):
    %2: (f32[2],) = cond(%0, %1, true=@0, false=@1, exist=())
        @0 = graph(%0: f32[2] "x"):
            %1: f32[2] = neg(%0)
            return %1
        @1 = graph(%0: f32[2] "x"):
            return %0
    %3: f32[2] = item(%2, index=0)
    return %3""")
    verify(graph, "test")
    x = torch.randn(2)
    assert torch.equal(interpret(graph, [torch.tensor(True), x]).outputs[0], -x)
    assert torch.equal(interpret(graph, [torch.tensor(False), x]).outputs[0], x)


def test_wrong_prediction_is_an_error() -> None:
    graph = parse_graph('graph(%0: f32[2] "x"):\n    %1: f64[2] = aten.neg.default(%0)\n    return %1')
    with pytest.raises(WrongPrediction):
        interpret(graph, [torch.randn(2)])


def broken(old: str, new: str) -> Graph:
    return parse_graph(MLP.replace(old, new))


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("V2", "add(%4, %2)", "add(%4, %2, %2)"),
        ("V2", "dims=(1, 0)", "axes=(1, 0)"),
        ("V2", "%2: f32[16]", "%2: f64[16]"),
        ("V3", "f32[s0, 16] = add", "f32[s0, 17] = add"),
        ("V3", "f32[8, 16 | 1, 8]", "f32[8, 16]"),
        ("V3", "f32[8, 16 | 1, 8]", "f32[8, 16 | 1, 8 at 3]"),
        ("V3", "sizes=(16*s0,)", "sizes=(16*s0, 1)"),
        ("V6", "return", "write %0 <- %4\n    return"),
        ("V7", "return %8", "return %8 is input 7"),
    ],
)
def test_verifier(rule: str, old: str, new: str) -> None:
    with pytest.raises(InvalidGraph, match=f"{rule}: "):
        verify(broken(old, new), "test")


def test_verifier_finds_wrong_order() -> None:
    graph = parse_graph(MLP)
    graph.nodes.reverse()
    with pytest.raises(InvalidGraph, match="V1"):
        verify(graph, "test")


def test_rewrite_and_dead_code() -> None:
    graph = parse_graph(MLP)
    users = users_of(graph)
    assert [user.op.name for user in users[graph.inputs[0]]] == ["aten"]
    changed, count = rewrite(
        graph, lambda b, n: b.node("minimum", *n.inputs) if n.op.name == "maximum" else None, STATIC
    )
    assert count == 1
    assert "minimum(%5, %6)" in graph_text(changed)
    assert graph_text(graph) == MLP
    dropped, gone = without_dead_code(Graph(graph.inputs, graph.nodes, graph.outputs[1:]))
    assert gone == 6
    assert [node.op.name for node in dropped] == ["iota"]


def test_nested_results_that_are_one_value_are_copied_for_torch() -> None:
    graph = parse_graph("""\
graph(%0: b8[] "c", %1: f32[2] "x"):
    %2: (f32[2], f32[2], f32[2]) = cond(%0, %1, true=@0, false=@0, exist=())
        @0 = graph(%0: f32[2] "x"):
            %1: f32[2] = neg(%0)
            return %1, %1, %0
    %3: f32[2] = item(%2, index=0)
    return %3""")
    nested = [module for _, module in fx_view(graph).named_children()]
    calls = [[str(node.target) for node in module.graph.nodes if node.op == "call_function"] for module in nested]
    assert calls and all(names.count("aten.clone.default") == 2 for names in calls)
