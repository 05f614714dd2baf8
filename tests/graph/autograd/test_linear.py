"""Which pieces of a backward are linear in the gradient `%0`."""

from __future__ import annotations

import pytest

from kiln.graph.autograd.linear import is_linear
from kiln.graph.ir.parse import parse_graph

GRAPH = """\
graph(%0: f32[4] "g", %1: f32[4] "x", %2: i64[4] "i", %3: b8[4] "p"):
    %4: f32[] = constant(value=0.0, dtype=f32, device=cpu)
    %5: f32[4] = expand(%4, sizes=(4,))
    %6: f32[] = constant(value=2.0, dtype=f32, device=cpu)
    %7: f32[4] = neg(%0)
    {node}
    return %8
"""
LINEAR = [
    "%8: f32[4] = neg(%7)",
    "%8: f32[4] = add(%0, %7)",
    "%8: f32[4] = add(%7, %5)",
    "%8: f32[4] = mul(%7, %1)",
    "%8: f32[4] = mul(%6, %7)",
    "%8: f32[4] = div(%0, %1)",
    "%8: f32[4] = fma(%0, %1, %7)",
    "%8: f32[4] = where(%3, %7, %5)",
    "%8: f64[4] = convert(%0, dtype=f64)",
    "%8: f32[] = sum(%0, axes=(0,))",
    "%8: f32[4] = gather(%0, %2, axis=0)",
    "%8: f32[4] = scatter(%5, %2, %0, axis=0, reduce='sum')",
    "%8: f32[6] = pad(%0, %4, low=(1,), high=(1,))",
    "%8: f32[8] = cat(%0, %7, axis=0)",
    "%8: f32[4] = clone(%5, strides=None)",
    "%9: f32[2, 2] = reshape(%0, sizes=(2, 2))\n    %10: f32[2, 2] = reshape(%1, sizes=(2, 2))"
    "\n    %8: f32[2, 2] = aten.mm.default(%10, %9)",
    "%8: f32[4] = aten.sigmoid_backward.default(%0, %1)",
]
OTHER = [
    "%8: f32[4] = mul(%0, %7)",
    "%8: f32[4] = add(%0, %1)",
    "%8: f32[4] = sub(%1, %0)",
    "%8: f32[4] = div(%1, %0)",
    "%8: f32[4] = fma(%0, %7, %5)",
    "%8: f32[4] = fma(%0, %1, %1)",
    "%8: f32[4] = where(%3, %7, %1)",
    "%8: f32[4] = sin(%7)",
    "%8: f32[4] = sign(%0)",
    "%8: f32[] = amax(%0, axes=(0,))",
    "%8: i64[4] = convert(%0, dtype=i64)",
    "%8: f32[4] = scatter(%1, %2, %0, axis=0, reduce=None)",
    "%8: f32[4] = scatter(%5, %2, %0, axis=0, reduce='amax')",
    "%8: f32[6] = pad(%0, %6, low=(1,), high=(1,))",
    "%8: f32[8] = cat(%0, %1, axis=0)",
    "%8: f32[4] = clone(%1, strides=None)",
    "%9: f32[2, 2] = reshape(%0, sizes=(2, 2))\n    %8: f32[2, 2] = aten.mm.default(%9, %9)",
    "%8: f32[4] = aten.sigmoid_backward.default(%1, %0)",
    "%8: f32[4] = aten.sort.default(%0)",
    "%8: f32[8] = aten.hstack.default((%0, %1))",
]


def linear(node: str) -> bool:
    graph = parse_graph(GRAPH.format(node=node))
    return is_linear(graph.nodes, graph.inputs[:1], [output.value for output in graph.outputs])


@pytest.mark.parametrize("node", LINEAR)
def test_linear(node: str) -> None:
    assert linear(node)


@pytest.mark.parametrize("node", OTHER)
def test_not_linear(node: str) -> None:
    assert not linear(node)


def test_what_is_computed_of_something_that_is_not_linear() -> None:
    nodes = "%9: f32[4] = mul(%0, %0)\n    %10: f32[4] = mul(%9, %1)\n    %8: f32[4] = add(%10, %0)"
    assert not linear(nodes)
