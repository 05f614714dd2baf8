"""The graph of a training program: forward, backward of the loss, gradients as further outputs.

    graph(%0: f32[4] "w", %1: f32[4] "x", %2: f32[] "tangent_0"):      graph(%0: f32[4] "w", %1: f32[4] "x"):
        ...                                                       =>       %2: f32[] = constant(value=1.0, ...)
        return %5, %9                                                      return %5, %9

The tangent of the loss is one, those of other results are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from kiln.graph.autograd.joint import JointGraph
from kiln.graph.autograd.tangents import without_joins
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.rewrite import rebuilt, with_inputs, without_dead_code
from kiln.graph.prims.rows import PRIMS
from kiln.programs.call.errors import NotATrainingProgram
from kiln.programs.call.signature import ResultLeaf
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """`graph.outputs` from `first` on are the gradients of the graph inputs `inputs`."""

    graph: Graph
    first: int
    inputs: tuple[int, ...]


def training_graph(joint: JointGraph | None, results: Sequence[ResultLeaf], function: str) -> TrainingGraph:
    """Raises NotATrainingProgram if the first result is not a loss."""
    loss = results[0] if results else ResultLeaf("constant")
    if joint is None or loss.kind != "output" or loss.number not in joint.tangent_of:
        reason = "its first result does not depend on a tensor that requires a gradient"
        raise NotATrainingProgram(function=function, reason=reason)
    if joint.carried:
        raise NotATrainingProgram(function=function, reason="it changes a tensor under autograd")
    spec = joint.tangents[joint.tangent_of.index(loss.number)].tensor
    if spec.numel() != 1:
        raise NotATrainingProgram(function=function, reason=f"its first result is {spec}, not one number")
    seeds: list[Node] = []
    replaced: dict[Node, Node] = {}
    for tangent, of in zip(joint.tangents, joint.tangent_of, strict=True):
        made = filled(tangent.tensor, 1.0 if of == loss.number else 0.0)
        replaced[tangent] = made[-1]
        seeds += made
    graph = without_joins(joint.graph)
    nodes = [*seeds]
    for node in graph.nodes:
        replaced[node] = with_inputs(node, tuple([replaced.get(value, value) for value in node.inputs]))
        nodes.append(replaced[node])
    outputs = tuple([replace(output, requires_grad=False) for output in rebuilt(graph, nodes, replaced).outputs])
    whole = replace(rebuilt(graph, nodes, replaced), inputs=graph.inputs[: joint.num_forward_inputs], outputs=outputs)
    wanted = [(at, number) for number, at in enumerate(joint.grads) if at is not None]
    inputs = tuple([number for _, number in sorted(wanted)])
    return TrainingGraph(without_dead_code(whole)[0], joint.num_forward_outputs, inputs)


def filled(spec: TensorSpec, number: float) -> list[Node]:
    """Nodes that make a tensor of this spec with one value everywhere."""
    scalar = TensorSpec(spec.dtype, (), (), 0, spec.device)
    attrs: dict[str, Attr] = {"value": number, "dtype": spec.dtype, "device": spec.device}
    made = [Node(PRIMS["constant"], (), attrs, scalar)]
    if spec.rank:
        made.append(Node(PRIMS["full"], (made[-1],), {"sizes": spec.sizes}, spec.with_sizes(spec.sizes)))
    if not spec.is_contiguous():
        made.append(Node(PRIMS["clone"], (made[-1],), {"strides": spec.strides}, spec))
    return made
