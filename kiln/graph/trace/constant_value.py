"""Values computed from constants alone, whatever the inputs are.

    p = torch.arange(16)[None];  (p.diff() == 1).all()     =     True

Such a value may decide Python branches, as it is the same in every call. Only small, pure nodes over constants and
static sizes qualify.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import symbols_in
from kiln.graph.prims.table import Kind
from kiln.tensor.spec import TensorSpec

LARGEST = 1 << 16
"""Elements of the largest tensor computed at compile time."""

PURE_KINDS = frozenset(
    {Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.VIEW, Kind.DATA_MOVEMENT, Kind.SCATTER, Kind.CREATE}
)


def constant_value(nodes: Sequence[Node], node: Node, constants: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The value of `node`, or None if it depends on more than constants. `nodes`: all nodes in order."""
    needed: set[int] = set()
    if not _collect(node, needed):
        return None
    graph = Graph((), [other for other in nodes if id(other) in needed], (Output(node),))
    value = interpret(graph, [], constants=constants).outputs[0]
    assert isinstance(value, torch.Tensor)
    return value


def _collect(root: Node, needed: set[int]) -> bool:
    """Collect the nodes `root` is computed from; False at the first that is not constant."""
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in needed:
            continue
        needed.add(id(node))
        if not _is_constant(node):
            return False
        pending += node.inputs
    return True


def _is_constant(node: Node) -> bool:
    spec = node.spec
    if node.op.kind not in PURE_KINDS and node.op.name != "constant_tensor":
        return False
    if node.op.name == "empty" or not isinstance(spec, TensorSpec):
        return False
    number = spec.numel()
    if not isinstance(number, int) or number > LARGEST:
        return False
    return not symbols_in(tuple(node.attrs.values()))
