"""Values of nodes over constants alone."""

from __future__ import annotations

import torch

from kiln.graph.ir.parse import parse_graph
from kiln.graph.trace.constant_value import constant_value

DIAMONDS = """
graph g(%0: f32[] "x"):
    %1: f32[] = constant(value=3.0, dtype=f32, device=cpu)
    %2: f32[] = add(%1, %1)
    %3: f32[] = mul(%2, %1)
    %4: f32[] = sub(%3, %2)
    %5: f32[] = mul(%4, %3)
    %6: f32[] = add(%5, %0)
    return %5, %6
"""


def test_nodes_are_computed_behind_their_inputs() -> None:
    """Each once, though several need it."""
    graph = parse_graph(DIAMONDS)
    known, open_ = [output.value for output in graph.outputs]
    value = constant_value(known, {})
    assert value is not None and torch.equal(value, torch.tensor(216.0))
    assert constant_value(open_, {}) is None
