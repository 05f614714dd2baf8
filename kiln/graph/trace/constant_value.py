"""Values computed from constants alone, whatever the inputs are, and comparisons whose result is always the same.

    p = torch.arange(16)[None];  (p.diff() == 1).all()     =     True
    torch.rand([]) < 0.0                                   =     False

Such a value may decide Python branches, as it is the same in every call. Only small, pure nodes over constants and
static sizes qualify.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import symbols_in
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import is_random, written_arguments
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

LARGEST = 1 << 20
"""Elements of the largest tensor computed at compile time."""

PURE_KINDS = frozenset(
    {Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.VIEW, Kind.DATA_MOVEMENT, Kind.SCATTER, Kind.CREATE}
)


def constant_value(node: Node, constants: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The value of `node`, or None if it depends on more than constants."""
    needed = _needed_nodes(node)
    if needed is None:
        return None
    graph = Graph((), needed, (Output(node),))
    value = interpret(graph, [], constants=constants).outputs[0]
    assert isinstance(value, torch.Tensor)
    return value


def _needed_nodes(root: Node) -> list[Node] | None:
    """The nodes that `root` is computed from, each behind its inputs; None if one of them is not constant."""
    needed: dict[int, Node] = {}
    entered: set[int] = set()
    pending = [root]
    while pending:
        node = pending[-1]
        if id(node) in entered:
            needed.setdefault(id(pending.pop()), node)
            continue
        if not _is_constant(node):
            return None
        entered.add(id(node))
        pending += [given for given in node.inputs if id(given) not in needed]
    return list(needed.values())


def _is_constant(node: Node) -> bool:
    spec = node.spec
    if isinstance(spec, tuple):
        return is_pure_call(node)
    if node.op.kind not in PURE_KINDS and node.op.name not in ("constant_tensor", "item") and not is_pure_call(node):
        return False
    if node.op.name == "empty" or not isinstance(spec, TensorSpec) or spec.device.type == "meta":
        return False
    number = spec.numel()
    if not isinstance(number, int) or number > LARGEST:
        return False
    return not symbols_in(tuple(node.attrs.values()))


def is_pure_call(node: Node) -> bool:
    """Whether it is a call of one of ATen's operators that depends on its arguments alone."""
    target = node.attrs.get("target") if node.op.name == "aten" else None
    if not isinstance(target, str) or not target.startswith("aten."):
        return False
    return not is_random(target) and not written_arguments(target)


@final
@dataclass(frozen=True, slots=True)
class NumberRange:
    """Where a number lies; `open`: below `high`."""

    low: float
    high: float
    open: bool = False


def is_less(left: NumberRange, right: NumberRange) -> bool | None:
    if left.high < right.low or (left.high == right.low and left.open):
        return True
    return False if left.low >= right.high else None


def is_at_most(left: NumberRange, right: NumberRange) -> bool | None:
    exceeds = is_less(right, left)
    return None if exceeds is None else not exceeds


COMPARISONS: Mapping[str, Callable[[NumberRange, NumberRange], bool | None]] = {
    "lt": is_less,
    "le": is_at_most,
    "gt": lambda left, right: is_less(right, left),
    "ge": lambda left, right: is_at_most(right, left),
}
UNIT_DRAWS = ("aten.rand.default", "aten.rand_like.default")


def comparison_truth(node: Node, constants: Mapping[str, torch.Tensor]) -> bool | None:
    """What a comparison of a random number with a constant always gives, None if that varies."""
    compare = COMPARISONS.get(node.op.name)
    if compare is None:
        return None
    left, right = [range_of(operand, constants) for operand in node.inputs]
    return compare(left, right) if left is not None and right is not None else None


def range_of(node: Node, constants: Mapping[str, torch.Tensor]) -> NumberRange | None:
    unit = node.attrs.get("distribution") == "uniform" and node.attrs.get("params") == (0.0, 1.0)
    if unit or node.attrs.get("target") in UNIT_DRAWS:
        return NumberRange(0.0, 1.0, open=True)
    known = constant_value(node, constants)
    if known is None or known.numel() != 1 or known.is_complex() or known.isnan():
        return None
    return NumberRange(float(known), float(known))
