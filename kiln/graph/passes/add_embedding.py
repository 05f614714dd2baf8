"""Adds the gradient of an embedding to another gradient at the looked-up rows only.

    %2 = aten.embedding_dense_backward.default(%grad, %at, 50257, -1, False)
    %3 = add(%1, %2)                                    =>      %3 = index_put(%1, %at, %grad, axes=(0,), accumulate)

Language models tie the table to the last projection, whose gradient is a product of the table's size; the embedding
adds 128 rows of 50,257. Rows with the padding index add zeros.
Sums of repeated rows change their order, so 16-bit dtypes are left alone.
"""

from __future__ import annotations

from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Arg, Node
from kiln.graph.ir.rewrite import Users, rewrite, users_of
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.patterns import can_replace
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import is_static

TABLE = "aten.embedding_dense_backward.default"
EXACT = frozenset({torch.float32, torch.float64})


@final
@dataclass(frozen=True)
class AddEmbedding:
    name: str = "add-embedding"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        tables = {node for node in graph.nodes if is_table(node)}
        if not tables:
            return graph, 0
        users = users_of(graph)
        chosen = {node for node in graph.nodes if node.op.name == "add" and added_table(node, users) is not None}
        chosen -= {user for table in tables & set(graph.roots()) for user in users[table]}
        return rewrite(graph, put_rows, context.oracle, only=chosen)


def is_table(node: Node) -> bool:
    """Whether it is an embedding's gradient with fewer rows than the table, not scaled by frequency."""
    if node.op.kind is not Kind.LIBRARY or node.attrs["target"] != TABLE or node.attrs["kwargs"]:
        return False
    rows, table, args = node.inputs[0].tensor.numel(), node.tensor.numel(), node.attrs["args"]
    fewer = rows <= table if is_static(rows) and is_static(table) else True
    plain = args[:2] == (Arg(0), Arg(1)) and isinstance(args[3], int) and args[4] is False
    return plain and fewer and node.tensor.dtype in EXACT


def added_table(node: Node, users: Users | None = None) -> Node | None:
    """The operand of a sum that is such a gradient, with the other's layout and no other reader."""
    for table, other in (node.inputs, node.inputs[::-1]):
        if not is_table(table) or table is other or (users is not None and users[table] != [node]):
            continue
        if can_replace(table.spec, other.spec) and other.tensor.is_contiguous():
            return table
    return None


def put_rows(builder: Builder, node: Node) -> Node | None:
    """The other operand with the rows added."""
    table = added_table(node)
    if table is None:
        return None
    (other,) = (operand for operand in node.inputs if operand is not table)
    rows, at = table.inputs
    padding = table.attrs["args"][3]
    if padding >= 0:
        real = builder.node("ne", at, builder.constant(padding, at.tensor.dtype, at.tensor.device))
        nothing = builder.constant(0.0, rows.tensor.dtype, rows.tensor.device)
        rows = builder.node("where", builder.node("unsqueeze", real, axis=real.tensor.rank), rows, nothing)
    made = builder.node("index_put", other, at, rows, axes=(0,), accumulate=True)
    return made if can_replace(made.spec, node.spec) else None
