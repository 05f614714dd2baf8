"""The joint graph: forward and backward in one, recorded in one trace.

    graph(%0: f32[4] "x", %1: f32[4] "w", %2: f32[4] "tangent_0"):
        %3: f32[4] = mul(%0, %1)                        # torch.mul
        %4: f32[4] = mul(%2, %1)                        # torch.mul (backward)
        %5: f32[4] = mul(%2, %0)                        # torch.mul (backward)
        return %3, %4, %5                               one output, then the gradients of x and w

A tangent arrives for each result that requires grad and is computed here: outputs that are views of inputs or
of earlier outputs are rebuilt outside, where eager's autograd differentiates the view. An input whose new
contents have a history (an in-place op under autograd) is a result too: see `JointGraph.carried`.
Needs: a recorder whose trace was finished a moment ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from kiln.graph.autograd.errors import BackwardOfOutside
from kiln.graph.ir.graph import Graph, Output, Write
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import without_dead_code
from kiln.graph.prims.meta import preserved
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.spec import TensorSpec
from kiln.graph.trace import Recorder, Trace
from kiln.graph.trace.fake import FakeTensor
from kiln.symbolic import ShapeEnv


@final
@dataclass(frozen=True, slots=True)
class JointGraph:
    """`graph.inputs` are the forward's, then the tangents; `graph.outputs` the forward's, then the gradients.

    `carried`: numbers of inputs whose new contents take part in autograd. They are the last of the forward outputs,
    in this order, instead of a write; the caller copies them into the inputs where autograd sees it.
    `tangent_of`: per tangent the number of its forward output. `grads`: per forward input the number of its
    gradient in `graph.outputs`, or None. `env` knows the hints of symbolic sizes.
    """

    graph: Graph
    num_forward_inputs: int
    num_forward_outputs: int
    carried: tuple[int, ...]
    tangent_of: tuple[int, ...]
    grads: tuple[int | None, ...]
    env: ShapeEnv | None = None

    @property
    def tangents(self) -> tuple[Node, ...]:
        return self.graph.inputs[self.num_forward_inputs :]

    @property
    def tangent_specs(self) -> tuple[TensorSpec, ...]:
        """The layouts in which the backward takes its tangents; the caller copies others into them."""
        return tuple([tangent.tensor for tangent in self.tangents])

    @property
    def forward_outputs(self) -> tuple[Output, ...]:
        return self.graph.outputs[: self.num_forward_outputs]


def make_joint(recorder: Recorder, trace: Trace) -> JointGraph:
    """Record the backward of `trace` behind its forward."""
    used = trace.used_inputs
    carried = trace.carried_inputs
    results: list[Any] = [*trace.fake_outputs, *[used[index].fake for index in carried]]
    outputs = [*trace.graph.outputs]
    outputs += [Output(recorder.node_of(used[index].fake), None, True) for index in carried]
    tangent_of = [place for place, output in enumerate(outputs) if output.requires_grad and output.alias is None]
    tangents = [
        make_tangent(recorder, results[place], len(trace.graph.inputs) + number)
        for number, place in enumerate(tangent_of)
    ]
    wanted = [index for index, record in enumerate(used) if record.requires_grad]
    leaves = [used[index].origin for index in wanted]
    roots = [results[place] for place in tangent_of]
    found = recorder.run_backward(roots, tangents, leaves) if roots and leaves else []
    gradients: dict[int, Node] = {
        index: recorder.node_of(grad) for index, grad in zip(wanted, found, strict=False) if grad is not None
    }
    graph, places = _assemble(recorder, trace, outputs, carried, [recorder.node_of(one) for one in tangents], gradients)
    grads = [places.get(index) for index in range(len(used))]
    return JointGraph(
        graph, len(trace.graph.inputs), len(outputs), tuple(carried), tuple(tangent_of), tuple(grads), trace.env
    )


def make_tangent(recorder: Recorder, like: FakeTensor, index: int) -> FakeTensor:
    """The gradient of a result: its sizes and format, dense, at offset 0.

    Where strides of size-1 dimensions are all that differs from a contiguous tensor, it is one: a size that only such
    a stride tells could not be read off a tangent, whose strides are the caller's.
    """
    spec = preserved(recorder.env, like.place.spec)
    known = tuple([recorder.env.simplify(size) for size in spec.sizes])
    if spec.with_view(known, spec.strides, 0).is_contiguous():
        spec = spec.with_sizes(spec.sizes)
    number = {"index": index, "name": f"tangent_{index}"}
    return recorder.fake_of(Node(PRIMS["input"], (), number, spec))


def _assemble(
    recorder: Recorder,
    trace: Trace,
    outputs: Sequence[Output],
    carried: Sequence[int],
    tangents: Sequence[Node],
    gradients: dict[int, Node],
) -> tuple[Graph, dict[int, int]]:
    """The live part of everything recorded, and the place of each gradient among its outputs."""
    inputs = (*trace.graph.inputs, *tangents)
    places = {index: len(outputs) + number for number, index in enumerate(gradients)}
    results = (*outputs, *[Output(node) for node in gradients.values()])
    targets = {trace.graph.inputs[index] for index in carried}
    writes: list[Write] = [write for write in trace.graph.writes if write.target not in targets]
    whole = Graph(inputs, list(recorder.nodes), results, tuple(writes), "joint", trace.graph.facts)
    graph, _ = without_dead_code(whole)
    known = {*graph.inputs, *graph.nodes}
    for node in graph.nodes:
        for one in node.inputs:
            if one not in known:
                raise BackwardOfOutside(call=node.op.name, name=one.attrs.get("name", one.op.name))
    return graph, places
