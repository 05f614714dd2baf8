"""Separates the bias from a matrix product if a following pointwise op can add it for free.

    %3 = aten.addmm.default(%b, %x, %w)             %3 = aten.mm.default(%x, %w)
    %4 = mul(%3, ...)                       =>      %5 = add(%3, %b)
                                                    %4 = mul(%5, ...)       a kernel with the add

`addmm` first copies the bias into the result and reads it back. Views are looked through. If a library op reads the
result (attention, the next product), it stays, as the sum would be another tensor to write.
"""

from __future__ import annotations

from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Arg, Node, base_of
from kiln.graph.ir.rewrite import Users, rewrite, users_of
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.patterns import can_replace
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass

PRODUCTS = {"aten.addmm.default": "aten.mm.default", "aten.baddbmm.default": "aten.bmm.default"}
FUSIBLE = frozenset({Kind.POINTWISE, Kind.REDUCTION})


@final
@dataclass(frozen=True)
class UnfuseBias:
    name: str = "unfuse-bias"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        if all(node.attrs["target"] not in PRODUCTS for node in graph.nodes if node.op.kind is Kind.LIBRARY):
            return graph, 0
        users = users_of(graph)
        chosen = {node for node in graph.nodes if is_candidate(node, users)}
        # For an output (or a value saved for the backward) the sum would be another tensor to write.
        chosen.difference_update([base_of(root) for root in graph.roots()])
        return rewrite(graph, unfused, context.oracle, only=chosen)


def is_candidate(node: Node, users: Users) -> bool:
    """Whether it is a plain product with bias that a fusible op reads, or only fusible ops through views."""
    attrs = node.attrs
    return (
        node.op.kind is Kind.LIBRARY
        and attrs["target"] in PRODUCTS
        and attrs["args"] == (Arg(0), Arg(1), Arg(2))
        and attrs["kwargs"] == ()
        and node.tensor.dtype.is_floating_point
        and is_added_by_readers(node, users)
    )


def is_added_by_readers(node: Node, users: Users, kinds: frozenset[Kind] = FUSIBLE) -> bool:
    """Whether an op of `kinds` that reads `node` can add a bias to it, so that the sum need not be in memory."""
    return any(user.op.kind in kinds for user in users[node]) or only_read_by(node, users, kinds)


def only_read_by(node: Node, users: Users, kinds: frozenset[Kind]) -> bool:
    """Whether `node` has readers, looking through views, and all are of these `kinds`."""
    pending, found = [node], False
    while pending:
        for user in users[pending.pop()]:
            if user.op.kind is Kind.VIEW:
                pending.append(user)
            elif user.op.kind in kinds:
                found = True
            else:
                return False
    return found


def unfused(builder: Builder, node: Node) -> Node | None:
    """The product, then the sum."""
    bias, *factors = node.inputs
    product = builder.aten(PRODUCTS[node.attrs["target"]], factors, {}, node.spec)
    total = builder.node("add", product, bias)
    return total if can_replace(total.spec, node.spec) else None
