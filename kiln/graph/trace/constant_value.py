"""Values that a trace knows: what follows from constants alone, whatever the inputs are.

    p = torch.arange(16)[None];  (p.diff() == 1).all()     =     True

Such a value may steer Python: it is the same in every call of the compiled region. Only pure nodes over constants
and static sizes count, and only small ones.
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
"""Elements of the largest tensor that is computed at compile time."""

PURE_KINDS = frozenset(
    {Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.VIEW, Kind.DATA_MOVEMENT, Kind.SCATTER, Kind.CREATE}
)


def constant_value(nodes: Sequence[Node], node: Node, constants: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The value of `node`, or None where it depends on more than constants. `nodes` holds all in order."""
    needed: set[int] = set()
    if not _collect(node, needed):
        return None
    graph = Graph((), [one for one in nodes if id(one) in needed], (Output(node),))
    value = interpret(graph, [], constants=constants).outputs[0]
    assert isinstance(value, torch.Tensor)
    return value


def _collect(root: Node, needed: set[int]) -> bool:
    """Gather what `root` is computed from; False at the first node that is not known."""
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in needed:
            continue
        needed.add(id(node))
        if not _is_known(node):
            return False
        pending += node.inputs
    return True


def _is_known(node: Node) -> bool:
    spec = node.spec
    if node.op.kind not in PURE_KINDS and node.op.name != "constant_tensor":
        return False
    if node.op.name == "empty" or not isinstance(spec, TensorSpec):
        return False
    number = spec.numel()
    if not isinstance(number, int) or number > LARGEST:
        return False
    return not symbols_in(tuple(node.attrs.values()))
