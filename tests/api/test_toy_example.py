"""The example of torch.compile's manual: three graphs, whatever the inputs."""

from __future__ import annotations

import operator
from typing import Any

import torch

import kiln

Row = tuple[str, str, Any, Any]


def rows_of(module: torch.fx.GraphModule) -> list[Row]:
    def plain(value: Any) -> Any:
        return torch.fx.node.map_arg(value, str)

    return [(node.op, node.name, node.target, plain(node.args)) for node in module.graph.nodes]


FIRST = [
    ("placeholder", "a", "a", ()),
    ("placeholder", "b", "b", ()),
    ("call_function", "abs_1", torch.abs, ("a",)),
    ("call_function", "add", operator.add, ("abs_1", 1)),
    ("call_function", "truediv", operator.truediv, ("a", "add")),
    ("call_method", "sum_1", "sum", ("b",)),
    ("call_function", "lt", operator.lt, ("sum_1", 0)),
    ("output", "output", "output", (("truediv", "lt"),)),
]
NEGATIVE = [
    ("placeholder", "b", "b", ()),
    ("placeholder", "x", "x", ()),
    ("call_function", "mul", operator.mul, ("b", -1)),
    ("call_function", "mul_1", operator.mul, ("x", "mul")),
    ("output", "output", "output", (("mul_1",),)),
]
POSITIVE = [
    ("placeholder", "b", "b", ()),
    ("placeholder", "x", "x", ()),
    ("call_function", "mul", operator.mul, ("x", "b")),
    ("output", "output", "output", (("mul",),)),
]


def toy_example(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_three_graphs_in_the_order_of_the_branches() -> None:
    graphs: list[list[Row]] = []
    tabular: list[torch.fx.GraphModule] = []

    def my_compiler(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        graphs.append(rows_of(gm))
        tabular.append(gm)
        assert all(isinstance(given, torch.Tensor) for given in example_inputs)
        return gm.forward

    compiled = kiln.compile(toy_example, backend=my_compiler)
    torch.manual_seed(0)
    signs = []
    for _ in range(100):
        a, b = torch.randn(10), torch.randn(10)
        assert torch.equal(compiled(a, b), toy_example(a, b))
        signs.append(bool(b.sum() < 0))
    assert len(graphs) == 3
    assert graphs[0] == FIRST
    assert graphs[1:] == ([NEGATIVE, POSITIVE] if signs[0] else [POSITIVE, NEGATIVE])
    tabular[0].graph.print_tabular()


def test_the_same_by_kilns_own_compiler() -> None:
    compiled = kiln.compile(toy_example)
    for _ in range(10):
        a, b = torch.randn(10), torch.randn(10)
        torch.testing.assert_close(compiled(a, b), toy_example(a, b))
    report = kiln.report_of(compiled)
    assert [graph_break.code for graph_break in report.breaks] == ["KILN1007"]
    assert "test_toy_example.py" in report.breaks[0].where
