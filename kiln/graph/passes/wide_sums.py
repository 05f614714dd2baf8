"""Sums what is scattered in 16-bit floats on a GPU in float32, and rounds the sums once.

    %3: bf16[225, 12] = index_put(%0, %1, %2, axes=(0,), accumulate=True)        the gradient of a position bias
                                =>
    %3: f32[225, 12] = index_put(convert(%0), %1, convert(%2), axes=(0,), accumulate=True)
    %4: bf16[225, 12] = convert(%3)

GPUs add float32 in memory by one instruction, so that a loop over all points runs in parallel; a loop of 16-bit sums
would run point after point. Eager adds in float32, too, where it indexes, and rounds each sum where it scatters.
"""

from __future__ import annotations

from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass

NARROW = (torch.float16, torch.bfloat16)


@final
@dataclass(frozen=True)
class WideSums:
    name: str = "wide-sums"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        return rewrite(graph, summed_wide, context.oracle, only=list(filter(is_narrow_sum, graph.nodes)))


def adds(node: Node) -> bool:
    """Whether a scatter adds what meets in one element."""
    if node.op.kind is not Kind.SCATTER:
        return False
    return bool(node.attrs["accumulate"]) if node.op.name == "index_put" else node.attrs["reduce"] == "sum"


def is_narrow_sum(node: Node) -> bool:
    return adds(node) and node.tensor.dtype in NARROW and node.tensor.device.type == "cuda"


def summed_wide(builder: Builder, node: Node) -> Node:
    first, *indices, values = node.inputs
    wide = [builder.node("convert", value, dtype=torch.float32) for value in (first, values)]
    sums = builder.node(node.op.name, wide[0], *indices, wide[1], **node.attrs)
    return builder.node("convert", sums, dtype=node.tensor.dtype)
