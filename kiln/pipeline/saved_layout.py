"""What is only saved of a padded product is saved as the library made it, not as a copy in eager's layout.

    forward    %4 = slice(%3 the product, axis=1, ...)          backward  %5: f32[16, 11] = convert(%0, dtype=f32)
               %6: bf16[16, 11] = clone(%4, strides=(11, 1))
               return %5 the loss, %6
                                =>
    forward    return %5, %4                                    backward  %6: bf16[16, 11] = clone(%0, strides=(11, 1))
                                                                          %5: f32[16, 11] = convert(%6, dtype=f32)

The backward reads it through a `clone`, which loops inline. GPT-2's logits are returned, a copy in eager's strides, and
saved: so they are copied once, and what the user does to the returned ones does not reach the saved ones.
"""

from __future__ import annotations

from dataclasses import replace

from kiln.graph.autograd import Partition
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rebuilt, with_inputs
from kiln.graph.passes import CUT_PASSES, run_passes
from kiln.graph.passes.manager import GraphPass
from kiln.graph.passes.misaligned import misaligned_product
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.pipeline.context import CompileContext
from kiln.plan.signature import SavedTensor


def saved_as_made(halves: Partition, context: CompileContext, passes: tuple[GraphPass, ...] = CUT_PASSES) -> Partition:
    """`halves` with padded products, of which what is saved is not copied."""
    if all(misaligned_product(node) is None for node in halves.forward.nodes):
        return halves
    forward = run_passes(halves.forward, context.events, env=context.env, passes=passes)
    outputs = list(forward.outputs)
    backward = halves.backward
    for place, saved in enumerate(halves.saved):
        if not isinstance(saved, SavedTensor) or saved.of == "input" or saved.index < halves.num_user_outputs:
            continue
        made = as_made(outputs[saved.index].value)
        if made is not None:
            outputs[saved.index] = Output(made)
            backward = with_layout(backward, place, made)
    return replace(halves, forward=replace(forward, outputs=tuple(outputs)), backward=backward)


def as_made(node: Node) -> Node | None:
    """The view of a library's result of which `node` is a copy."""
    if node.op.name != "clone" or node.inputs[0].op.name != "slice":
        return None
    below = node.inputs[0]
    while below.op.name == "slice":
        below = below.inputs[0]
    return node.inputs[0] if below.op.kind is Kind.LIBRARY else None


def with_layout(graph: Graph, place: int, made: Node) -> Graph:
    """`graph`, which takes input number `place` with the strides of `made`, and copies it where it first reads it."""
    old = graph.inputs[place]
    new = Node(old.op, (), old.attrs, made.spec)
    copy = Node(PRIMS["clone"], (new,), {"strides": old.tensor.strides}, old.spec)
    inputs = tuple([new if one is old else one for one in graph.inputs])
    places: dict[Node, Node] = {old: copy}
    nodes: dict[Node, None] = {}
    for node in graph.nodes:
        if old in node.inputs:
            nodes.setdefault(copy)
        places[node] = with_inputs(node, tuple([places.get(one, one) for one in node.inputs]))
        nodes[places[node]] = None
    if old in graph.roots():
        nodes.setdefault(copy)
    return rebuilt(replace(graph, inputs=inputs), list(nodes), places)
