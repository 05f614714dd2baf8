"""The example of torch.compile's manual: one graph, in which the `if` is a branch."""

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


def toy_example(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_one_graph_for_a_backend_of_the_user() -> None:
    graphs: list[list[Row]] = []

    def my_compiler(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        graphs.append(rows_of(gm))
        assert all(isinstance(given, torch.Tensor) for given in example_inputs)
        return gm.forward

    compiled = kiln.compile(toy_example, backend=my_compiler)
    torch.manual_seed(0)
    for _ in range(100):
        a, b = torch.randn(10), torch.randn(10)
        assert torch.equal(compiled(a, b), toy_example(a, b))
    (rows,) = graphs
    targets = [target for kind, _, target, _ in rows if kind == "call_function"]
    assert targets[:3] == [torch.abs, operator.add, operator.truediv]


def test_the_same_by_kilns_own_compiler() -> None:
    compiled = kiln.compile(toy_example)
    for _ in range(10):
        a, b = torch.randn(10), torch.randn(10)
        torch.testing.assert_close(compiled(a, b), toy_example(a, b))
    report = kiln.report_of(compiled)
    assert report.regions == 1 and not report.breaks
