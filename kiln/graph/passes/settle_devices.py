"""Moves CPU scalars to the device of the op that reads them.

    %2: f32[4 @cuda:0] = mul(%0, %1)    with %1: f32[] on the CPU
                                =>
    %2: f32[@cuda:0] = aten._to_copy.default(%1, device=cuda:0)
    %3: f32[4 @cuda:0] = mul(%0, %2)

Eager lets a CPU tensor of rank 0 meet tensors of another device and hands its value to the kernel. A kernel of a
region reads memory of its own device only. A scalar that several ops read is moved once. Library ops take CPU scalars
as eager does and are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite, with_inputs
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.spec import TensorSpec
from kiln.graph.prims.table import Kind

OUTSIDE = frozenset({Kind.LIBRARY, Kind.EFFECT, Kind.NESTED})


@final
@dataclass(frozen=True)
class SettleDevices:
    name: str = "settle-devices"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        chosen = {node for node in graph.nodes if strangers(node)}
        if not chosen:
            return graph, 0
        moved: dict[tuple[Node, torch.device], Node] = {}

        def settled(builder: Builder, node: Node) -> Node:
            spec = node.tensor
            inputs = tuple([
                _moved(builder, one, spec.device, moved) if is_stranger(one, spec) else one for one in node.inputs
            ])  # fmt: skip
            return builder.append(with_inputs(node, inputs))

        return rewrite(graph, settled, context.oracle, only=chosen)


def strangers(node: Node) -> list[Node]:
    """Inputs of `node` on another device, where it becomes part of a kernel."""
    spec = node.spec
    if node.op.kind in OUTSIDE or not isinstance(spec, TensorSpec):
        return []
    return [one for one in node.inputs if is_stranger(one, spec)]


def is_stranger(one: Node, spec: TensorSpec) -> bool:
    return isinstance(one.spec, TensorSpec) and one.spec.device != spec.device


def _moved(builder: Builder, one: Node, device: torch.device, moved: dict[tuple[Node, torch.device], Node]) -> Node:
    if (one, device) not in moved:
        there = replace(one.tensor, device=device, offset=0)
        moved[one, device] = builder.aten("aten._to_copy.default", (one,), {"device": device}, there)
    return moved[one, device]
