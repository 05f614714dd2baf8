"""Runs max pooling on the CPU channels last, where ATen is vectorised.

    %1, %2 = aten.max_pool2d_with_indices.default(%0, [3, 3], [2, 2], [1, 1])
                                =>
    %3: f32[4, 64, 112, 112 | 802816, 1, 7168, 64] = clone(%0, strides=(802816, 1, 7168, 64))
    %4, %5 = aten.max_pool2d_with_indices.default(%3, ...)
    %1 = clone(%4, strides=...); %2 = clone(%5, strides=...)

On contiguous images ATen visits each window element by element, on channels-last images all channels at once; maxima
and indices are equal. The copies fuse with neighbouring kernels.
Pools next to convolutions already have this layout (`channels_last.py`).
"""

from __future__ import annotations

from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.registry import LIBRARY
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.meta import format_strides
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import is_static, product

POOL = "aten.max_pool2d_with_indices.default"
LEAST_CHANNELS = 16
"""A vector; with fewer channels, lanes are idle."""
LEAST_ELEMENTS = 1 << 16
"""Of the argument: below this, two more launches cost what is gained."""


@final
@dataclass(frozen=True)
class PoolChannelsLast:
    name: str = "pool-channels-last"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        chosen = {node for node in graph.nodes if node.op.name == "item" and is_candidate(node.inputs[0])}
        if not chosen:
            return graph, 0
        made: dict[Node, Node] = {}

        def relaid(builder: Builder, node: Node) -> Node:
            (pool,), number = node.inputs, node.attrs["index"]
            if pool not in made:
                made[pool] = pooled(builder, pool, Emit(context.oracle))
            new = made[pool]
            part = builder.add(PRIMS["item"], (new,), node.attrs, new.spec[number])  # type: ignore[index]
            return builder.node("clone", part, strides=node.tensor.strides)

        return rewrite(graph, relaid, context.oracle, only=chosen)


def is_candidate(node: Node) -> bool:
    """Whether it pools contiguous images with enough channels on the CPU."""
    if node.op.kind is not Kind.LIBRARY or node.attrs["target"] != POOL:
        return False
    spec = node.inputs[0].tensor
    if spec.device.type != "cpu" or spec.dtype != torch.float32 or spec.rank != 4 or not spec.is_contiguous():
        return False
    count, channels = product(spec.sizes), spec.sizes[1]
    return is_static(count) and is_static(channels) and count >= LEAST_ELEMENTS and channels >= LEAST_CHANNELS


def pooled(builder: Builder, node: Node, emit: Emit) -> Node:
    """The same call on a channels-last copy, with strides of the results from its rule."""
    (image,) = node.inputs
    copy = builder.node("clone", image, strides=format_strides(image.tensor.sizes, "channels_last"))
    args, _ = node_arguments(node, (copy,))
    return builder.add(node.op, (copy,), node.attrs, LIBRARY[POOL](emit, *args))
