"""Computes interpolated images on the CPU dimension by dimension, in loops that fuse with their neighbours.

    %1: f32[4, 3, 56, 56] = aten.upsample_bilinear2d.default(%0, [56, 56], False)          (%0: f32[4, 3, 28, 28])
                                =>
    %5: f32[4, 3, 28, 56] = %0[.., low] * (1 - fraction) + %0[.., low + 1] * fraction      the last dimension
    %9: f32[4, 3, 56, 56] = %5[.., low, :] * (1 - fraction) + ...                          then the one before it

ATen weighs all elements around each point: four where a dimension each needs two, sixteen of cubics where each needs
four. Dimensions that shrink come first, so that the others have less to do; where all grow the order is ATen's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import live_where, rewrite
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.interpolation import (
    Factor,
    Resampled,
    Rule,
    cubic_taps,
    each_factor,
    interpolated_in_steps,
    linear_taps,
)
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import is_static

TAPS: dict[str, Rule] = {
    "aten.upsample_linear1d.default": linear_taps,
    "aten.upsample_bilinear2d.default": linear_taps,
    "aten.upsample_trilinear3d.default": linear_taps,
    "aten.upsample_bicubic2d.default": cubic_taps,
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True)
class ResampleInSteps:
    name: str = "resample-in-steps"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        def in_steps(builder: Builder, node: Node) -> Node:
            emit = Emit(context.oracle)
            emit.nodes, emit.origin = builder.nodes, builder.origin
            (_, _, align_corners, *factors), _ = node_arguments(node, node.inputs)
            before, after = node.inputs[0].tensor.sizes[2:], node.tensor.sizes[2:]
            scales = each_factor(after, cast(Sequence[Factor], factors))
            axes = [
                Resampled(old, new, bool(align_corners), factor)
                for old, new, factor in zip(before, after, scales, strict=True)
            ]
            return interpolated_in_steps(emit, node.inputs[0], axes, TAPS[node.attrs["target"]])

        return rewrite(graph, in_steps, context.oracle, only=live_where(graph, is_resampled))


def is_resampled(node: Node) -> bool:
    """Whether it is an image of floats on the CPU, of known sizes."""
    if node.op.kind is not Kind.LIBRARY or node.attrs["target"] not in TAPS:
        return False
    image = node.inputs[0].tensor
    is_plain = image.device.type == "cpu" and image.dtype in FLOATS and len(node.inputs) == 1
    is_known = all(is_static(size) for size in (*image.sizes[2:], *node.tensor.sizes[2:]))
    return is_plain and is_known and 0 not in (*image.sizes, *node.tensor.sizes)
