"""A padded product that is only saved is saved in the library's layout, not copied to eager's.

    forward    %4 = slice(%3 the product, axis=1, ...)          backward  %5: f32[16, 11] = convert(%0, dtype=f32)
               %6: bf16[16, 11] = clone(%4, strides=(11, 1))
               return %5 the loss, %6
                                =>
    forward    return %5, %4                                    backward  %6: bf16[16, 11] = clone(%0, strides=(11, 1))
                                                                          %5: f32[16, 11] = convert(%6, dtype=f32)

The backward reads it through a `clone`, which is inlined into its loops. GPT-2's logits are both returned, as a copy in
eager's strides, and saved: they are copied once, and changing the returned ones does not change the saved ones.
"""

from __future__ import annotations

from dataclasses import replace

from kiln.graph.autograd import Partition
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rebuilt, with_inputs
from kiln.graph.passes import FORWARD_PASSES, run_passes
from kiln.graph.passes.manager import GraphPass
from kiln.graph.passes.misaligned import misaligned_product
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.pipeline.context import CompileContext
from kiln.plan.signature import SavedTensor


def saved_as_made(
    partition: Partition, context: CompileContext, passes: tuple[GraphPass, ...] = FORWARD_PASSES
) -> Partition:
    """`partition` with padded products, saved without a copy."""
    if all(misaligned_product(node) is None for node in partition.forward.nodes):
        return partition
    forward = run_passes(partition.forward, context.events, env=context.env, passes=passes, without=context.without)
    outputs = list(forward.outputs)
    backward = partition.backward
    for number, saved in enumerate(partition.saved):
        if not isinstance(saved, SavedTensor) or saved.of == "input" or saved.index < partition.num_user_outputs:
            continue
        made = as_made(outputs[saved.index].value)
        if made is not None:
            outputs[saved.index] = Output(made)
            backward = with_layout(backward, number, made)
    return replace(partition, forward=replace(forward, outputs=tuple(outputs)), backward=backward)


def as_made(node: Node) -> Node | None:
    """The view of a library's result of which `node` is a copy."""
    if node.op.name != "clone" or node.inputs[0].op.name != "slice":
        return None
    below = node.inputs[0]
    while below.op.name == "slice":
        below = below.inputs[0]
    return node.inputs[0] if below.op.kind is Kind.LIBRARY else None


def with_layout(graph: Graph, number: int, made: Node) -> Graph:
    """`graph` taking input `number` with the strides of `made`; it copies the input before the first use."""
    old = graph.inputs[number]
    new = Node(old.op, (), old.attrs, made.spec)
    copy = Node(PRIMS["clone"], (new,), {"strides": old.tensor.strides}, old.spec)
    inputs = tuple([new if node is old else node for node in graph.inputs])
    successor: dict[Node, Node] = {old: copy}
    nodes: dict[Node, None] = {}
    for node in graph.nodes:
        if old in node.inputs:
            nodes.setdefault(copy)
        successor[node] = with_inputs(node, tuple([successor.get(operand, operand) for operand in node.inputs]))
        nodes[successor[node]] = None
    if old in graph.roots():
        nodes.setdefault(copy)
    return rebuilt(replace(graph, inputs=inputs), list(nodes), successor)
