"""Singular values and eigenvalues without the vectors, where nothing reads them.

    %1, %2, %3 = aten._linalg_svd.default(%0)                %1, %2, %3 = aten._linalg_svd.default(%0, False, False)
    return %2                                        =>      return %2

ATen asks for the vectors wherever it is called with a tensor of a subclass, as every fake is. Without them it takes a
half to a third of the time, by another algorithm, whose values eager's `svdvals` and `eigvalsh` have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Argument, Node
from kiln.graph.ir.rewrite import live_where, rewrite
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

SVD, EIGH = "aten._linalg_svd.default", "aten._linalg_eigh.default"
VALUES = {SVD: 1, EIGH: 0}
"""Which result of a decomposition has the values."""
DEFAULTS: Mapping[str, Argument] = {SVD: False, EIGH: "L"}
"""The argument before the one that asks for vectors, `full_matrices` or `UPLO`."""


@final
@dataclass(frozen=True)
class UnusedVectors:
    name: str = "unused-vectors"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        items = live_where(graph, lambda node: node.op.name == "item" and is_decomposition(node))
        vectors = {node.inputs[0] for node in items if not has_values(node)}
        chosen = [node for node in items if node.inputs[0] not in vectors]
        return rewrite(graph, values_alone, context.oracle, only=chosen)


def is_decomposition(item: Node) -> bool:
    node = item.inputs[0]
    return node.op.kind is Kind.LIBRARY and node.attrs["target"] in VALUES


def has_values(item: Node) -> bool:
    return bool(item.attrs["index"] == VALUES[item.inputs[0].attrs["target"]])


def values_alone(builder: Builder, item: Node) -> Node:
    node = item.inputs[0]
    target = node.attrs["target"]
    (matrix, *others), options = node_arguments(node, node.inputs)
    before = others[0] if others else DEFAULTS[target]
    values = item.tensor
    nothing = TensorSpec(values.dtype, (0,), (1,), 0, values.device)
    results = [nothing] * (3 if target == SVD else 2)
    results[VALUES[target]] = values
    made = builder.aten(target, [matrix, before, False], options, tuple(results))
    return builder.node("item", made, index=VALUES[target])
