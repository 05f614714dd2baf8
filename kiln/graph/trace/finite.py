"""The truth of a condition if all floats are finite: programs ask for NaN and infinity to catch what seldom happens.

    found = where(all(eq(g, g) & ne(abs(g), inf)), 0, 1)      found != 0     =>     False
    isnan(loss)                                               =>     False

What a question about floats is computed from does not matter. All else must be constants, combined element by element,
so that each value is one number: the same for all elements.
"""

from __future__ import annotations

import math
from typing import final

import torch

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.tensor.spec import TensorSpec

CLASSES = frozenset({"isnan", "isinf"})
OF_EQUALS = {"eq": True, "ne": False}
BELOW, ABOVE = frozenset({"lt", "le"}), frozenset({"gt", "ge"})
KEEP = frozenset({"any", "all", "amax", "amin", "full", "clone", "reshape"})
"""Ops that give the number that all elements of their operand are."""
MOST_NODES = 4096  # with more behind a question, the answer is not known


def truth_if_finite(root: Node) -> bool | None:
    """Whether `root` is true if all floats are finite; None if more decides that."""
    finder = _ScalarWalk()
    value = finder.scalar(root)
    if value is None or not finder.asked:
        return None
    result = interpret(Graph((), finder.nodes, (Output(value),)), []).outputs[0]
    assert isinstance(result, torch.Tensor)
    return bool(result)


@final
class _ScalarWalk:
    """Nodes of rank 0 that compute what all elements of other nodes are."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.found: dict[Node, Node | None] = {}
        self.asked = False
        """Whether a question about floats was met."""

    def scalar(self, root: Node) -> Node | None:
        pending = [root]
        while pending:
            node = pending[-1]
            if node in self.found or len(self.found) > MOST_NODES:
                pending.pop()
                continue
            waiting = [] if self._is_leaf(node) else [value for value in node.inputs if value not in self.found]
            if waiting:
                pending += waiting
            else:
                self.found[pending.pop()] = self._made(node)
        return self.found.get(root)

    def _is_leaf(self, node: Node) -> bool:
        return answer(node) is not None or not (node.op.kind in (Kind.POINTWISE, Kind.VIEW) or node.op.name in KEEP)

    def _made(self, node: Node) -> Node | None:
        known = answer(node)
        if known is not None:
            self.asked = True
            return self._constant(known, node.tensor)
        if node.op.name == "constant":
            return self._constant(node.attrs["value"], node.tensor)
        operands = [self.found[value] for value in node.inputs] if not self._is_leaf(node) else [None]
        if None in operands or not isinstance(node.spec, TensorSpec):
            return None
        if node.op.kind is not Kind.POINTWISE:
            return operands[0]
        made = Node(node.op, tuple(operands), node.attrs, of_rank_zero(node.tensor))  # type: ignore[arg-type]
        self.nodes.append(made)
        return made

    def _constant(self, value: object, spec: TensorSpec) -> Node:
        attrs = {"value": value, "dtype": spec.dtype, "device": torch.device("cpu")}
        made = Node(PRIMS["constant"], (), attrs, of_rank_zero(spec))  # type: ignore[arg-type]
        self.nodes.append(made)
        return made


def of_rank_zero(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.dtype, (), ())


def answer(node: Node) -> bool | None:
    """What a question about floats gives if they are finite; None: it is another question."""
    name = node.op.name
    if name in CLASSES:
        return False
    if len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if not left.tensor.dtype.is_floating_point:
        return None
    if name in OF_EQUALS and left is right:
        return OF_EQUALS[name]
    number = constant_of(right)
    if number is None or math.isfinite(number):
        return None
    if name in OF_EQUALS:
        return not OF_EQUALS[name]
    if math.isnan(number) or name not in BELOW | ABOVE:
        return None
    return (number > 0) is (name in BELOW)


def constant_of(node: Node) -> float | None:
    """The number that all elements are, through views and conversions."""
    while node.op.kind is Kind.VIEW or node.op.name in ("full", "convert"):
        node = node.inputs[0]
    value = node.attrs["value"] if node.op.name == "constant" else None
    return value if isinstance(value, float) else None
