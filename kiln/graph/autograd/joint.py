"""The joint graph: forward and backward, recorded in a single trace.

    graph(%0: f32[4] "x", %1: f32[4] "w", %2: f32[4] "tangent_0"):
        %3: f32[4] = mul(%0, %1)                        # torch.mul
        %4: f32[4] = mul(%2, %1)                        # torch.mul (backward)
        %5: f32[4] = mul(%2, %0)                        # torch.mul (backward)
        return %3, %4, %5                               the output, then the gradients of x and w

There is a tangent for each output that requires grad and is computed here: outputs that are views of inputs or of
earlier outputs are rebuilt outside, where eager's autograd differentiates the view. An input changed in place under
autograd is an output too: see `JointGraph.carried`.
Needs: a recorder whose trace has just been finished.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import cast, final

import torch

from kiln.graph.autograd.dependencies import Dependencies, dependencies
from kiln.graph.autograd.eager_saves import EagerSaves, SavedUse, eager_saves, renumbered
from kiln.graph.autograd.errors import BackwardOfOutside, BackwardRaises
from kiln.graph.autograd.function_saves import function_saves
from kiln.graph.ir.graph import Graph, Output, Write
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import live_nodes, symbols_read, without_dead_code
from kiln.graph.prims.meta import preserved
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace import Recorder, Trace
from kiln.graph.trace.autograd_edges import Edge, edge_of, edges_behind
from kiln.graph.trace.constants import spec_of_real
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.finish import refuse_without_memory, state_checks
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.recorder import recording
from kiln.runtime.subclasses import RegionWrappers, WrapperGradient
from kiln.support.records import dataclass
from kiln.symbolic import DataDependentSize, ShapeEnv
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class JointGraph:
    """`graph.inputs` are the forward's, then the tangents; `graph.outputs` the forward's, then the gradients.

    `carried`: numbers of inputs whose new contents have a gradient function. These are the last forward outputs, in
    this order, instead of writes; the caller copies them into the inputs under autograd. `tangent_of`: for each tangent
    the number of its forward output; of a wrapper (`graph/trace/outer.py`) there is one for each tensor inside.
    `grads`: for each forward input the number of its gradient in `graph.outputs`, or None; a wrapper is as many inputs
    as its gradient has tensors inside. `wrappers` says which are wrappers. `env` has the hints of symbolic sizes.
    `order`: inputs, as the engine of autograd comes to their gradients. `depends`: for each forward output those from
    which it is computed, without another one in between; empty if there are none. `eager_saves`: inputs and outputs
    that eager saves, known before passes merge values; None if no pass has run.
    """

    graph: Graph
    num_forward_inputs: int
    num_forward_outputs: int
    carried: tuple[int, ...]
    tangent_of: tuple[int, ...]
    grads: tuple[int | None, ...]
    order: tuple[int, ...] = ()
    env: ShapeEnv | None = None
    wrappers: RegionWrappers | None = None
    eager_saves: EagerSaves | None = None
    depends: Dependencies = ()

    @property
    def tangents(self) -> tuple[Node, ...]:
        return self.graph.inputs[self.num_forward_inputs :]

    @property
    def tangent_specs(self) -> tuple[TensorSpec, ...]:
        """The layouts that the backward expects; the caller copies tangents in other layouts."""
        return tuple([tangent.tensor for tangent in self.tangents])

    @property
    def forward_outputs(self) -> tuple[Output, ...]:
        return self.graph.outputs[: self.num_forward_outputs]

    @property
    def saves(self) -> EagerSaves:
        """What eager saves."""
        counts = self.num_forward_inputs, self.num_forward_outputs
        return self.eager_saves or eager_saves(self.graph, *counts, self.grads)


def make_joint(recorder: Recorder, trace: Trace) -> JointGraph:
    """Record the backward of `trace`."""
    carried = [trace.used_inputs[index] for index in trace.carried_inputs]
    changed = [cast(FakeTensor, record.fake) for record in carried]
    results = [*trace.fake_outputs, *changed]
    outputs = [*trace.graph.outputs, *[Output(recorder.node_of(fake), None, True) for fake in changed]]
    without = {index for index, leaf in enumerate(trace.leaves) if leaf}  # such leaves get gradients, but hand none on
    without |= {index for index, output in enumerate(outputs) if not output.requires_grad or output.alias is not None}
    tangent_of = [index for index in range(len(outputs)) if index not in without]
    roots = [results[index] for index in tangent_of]
    refuse_missing_gradients(recorder, roots)
    depends = dependencies(recorder, outputs, results)
    tangents = Tangents(recorder, len(trace.inputs))
    given = [tangents.make(root) for root in roots]
    wanted = [record for record in trace.used_inputs if record.requires_grad]
    leaves = [record.leaf for record in wanted]
    kept = function_saves(recorder, roots, leaves)
    found, order = gradients_of(recorder, roots, given, leaves) if roots and leaves else ([], [])
    pairs = [(record, grad) for record, grad in zip(wanted, found, strict=False) if grad is not None]
    made, wrapped = gradient_nodes(recorder, trace, pairs)
    use_for_backward(recorder, trace, [node for _, node in made])
    outputs[: len(trace.graph.outputs)] = trace.graph.outputs  # aliases of inputs, which have other numbers now
    positions = {id(record): index for index, record in enumerate(trace.used_inputs)}
    gradients = {positions[id(record)]: node for record, node in made}
    numbers = tuple([positions[id(record)] for record in carried])
    graph, at = _assemble(recorder, trace, outputs, numbers, tangents.nodes, gradients)
    state_checks(recorder.env, graph.nodes, recorder.forgotten)
    refuse_late_checks(recorder.env, graph.nodes)
    grads = tuple([at.get(index) for index in range(len(positions))])
    counts = zip(tangent_of, tangents.counts, strict=True)
    inputs = [positions[id(record)] for record in wanted]
    uses = [(node, SavedUse(tangents.of_roots(starts), renumbered(ends, inputs))) for node, starts, ends in kept]
    saves = eager_saves(graph, len(positions), len(outputs), grads, uses)
    refuse_parts_of_changed_memory(trace.used_inputs, [trace.used_inputs[number] for number in saves.inputs])
    outer = [(grad, [positions[id(record)] for record in records]) for grad, records in wrapped]
    wrappers = region_wrappers(recorder, trace, results, given, outer)
    return JointGraph(
        graph,
        len(positions),
        len(outputs),
        numbers,
        tuple([index for index, count in counts for _ in range(count)]),
        grads,
        tuple([positions[id(wanted[number])] for number in order]),
        trace.env,
        wrappers,
        saves,
        depends,
    )


@final
class Tangents:
    """The tangents of a recording: of a wrapper, one for each tensor inside."""

    def __init__(self, recorder: Recorder, first: int) -> None:
        self.recorder = recorder
        self.first = first
        self.nodes: list[Node] = []
        self.counts: list[int] = []

    def make(self, root: FakeTensor) -> FakeTensor:
        before = len(self.nodes)
        if root.is_outer:
            assert self.recorder.outer is not None
            made = self.recorder.outer.tangent(root, self.fresh)
        else:
            made = self.fresh(root)
        self.counts.append(len(self.nodes) - before)
        return made

    def of_roots(self, roots: int) -> int:
        """The tangents of roots; both as bits."""
        first, found = 0, 0
        for number, count in enumerate(self.counts):
            found |= ((1 << count) - 1) << first if roots >> number & 1 else 0
            first += count
        return found

    def fresh(self, like: FakeTensor) -> FakeTensor:
        spec = spec_of_real(like) if like.is_outer else like.storage_view.spec
        made = make_tangent(self.recorder, spec, self.first + len(self.nodes))
        self.nodes.append(self.recorder.node_of(made))
        return made


Gradients = list[tuple[InputRecord, Node]]
Wrapped = list[tuple[FakeTensor, list[InputRecord]]]


def gradient_nodes(
    recorder: Recorder, trace: Trace, pairs: Sequence[tuple[InputRecord, torch.Tensor]]
) -> tuple[Gradients, Wrapped]:
    """The gradient of each input as a node; one that is a wrapper becomes those of as many inputs as it has parts."""
    made: Gradients = []
    wrapped: Wrapped = []
    for record, grad in pairs:
        if not (isinstance(grad, FakeTensor) and grad.is_outer):
            made.append((record, recorder.node_of(grad)))
            continue
        assert recorder.outer is not None
        parts = recorder.outer.parts(grad)
        records = [record, *[recorder.table.add_part(record) for _ in parts[1:]]]
        trace.inputs += records[1:]
        made += [(owner, recorder.node_of(part)) for owner, part in zip(records, parts, strict=True)]
        wrapped.append((grad, records))
    if wrapped:
        trace.renumber_inputs()
    return made, wrapped


def region_wrappers(
    recorder: Recorder,
    trace: Trace,
    results: Sequence[FakeTensor],
    tangents: Sequence[FakeTensor],
    gradients: Sequence[tuple[FakeTensor, list[int]]],
) -> RegionWrappers | None:
    outer = recorder.outer
    inputs = {
        number: torch.empty((), dtype=record.fake.dtype, device=record.fake.device)
        for number, record in enumerate(trace.used_inputs)
        if isinstance(record.fake, FakeTensor) and record.fake.is_outer
    }
    if outer is None or not (inputs or any(result.is_outer for result in results)):
        return None
    return RegionWrappers(
        inputs,
        {number: outer.bare_layout(result) for number, result in enumerate(results) if result.is_outer},
        tuple([outer.layout(tangent) if tangent.is_outer else None for tangent in tangents]),
        tuple([WrapperGradient(outer.layout(grad), tuple(inputs)) for grad, inputs in gradients]),
    )


def gradients_of(
    recorder: Recorder, roots: list[FakeTensor], tangents: list[FakeTensor], leaves: list[FakeTensor]
) -> tuple[list[torch.Tensor | None], list[int]]:
    """Records the backward: the gradients, and the numbers of the leaves in the order in which they get them.

    Raises BackwardRaises where autograd refuses: eager would, but only if asked for it.
    """
    order: list[int] = []
    with ExitStack() as hooks:
        for number, leaf in enumerate(leaves):
            if leaf.requires_grad:
                hooks.callback(hooked(leaf, number, partial(note, order, number)))
        try:
            return recorder.run_backward(roots, tangents, leaves), order
        except RuntimeError as problem:
            raise BackwardRaises(problem=str(problem).partition("\n")[0]) from problem


def hooked(leaf: FakeTensor, number: int, hook: Callable[[torch.Tensor], None]) -> Callable[[], object]:
    """`register_hook` without a `RemovableHandle`, whose numbers the program may see; what is returned removes it."""
    if leaf._backward_hooks is None:
        leaf._backward_hooks = OrderedDict()
        if leaf.grad_fn is not None:
            leaf.grad_fn._register_hook_dict(leaf)
    leaf._backward_hooks[~number] = hook
    return partial(leaf._backward_hooks.pop, ~number)


def note(order: list[int], number: int, gradient: torch.Tensor) -> None:
    order.append(number)


def refuse_missing_gradients(recorder: Recorder, roots: Sequence[FakeTensor]) -> None:
    """Refuse functions whose backward asks which of its outputs have a gradient, if that depends on the tangents that
    arrive: the roots that reach such a function must all reach the same of its outputs."""
    for outputs, refuse in recorder.unmaterialised if len(roots) > 1 else ():
        with recording(recorder):
            node = outputs[0].grad_fn if outputs else None
            edges = list(map(edge_of, roots))
        reached = {frozenset(outputs_reached(edge, node)) for edge in edges}
        if len(reached - {frozenset()}) > 1:
            refuse("its backward asks which results have gradients (`set_materialize_grads`), and calls differ in it")


def outputs_reached(root: Edge, wanted: object) -> list[int]:
    """The numbers of the outputs of an autograd function on which `root` depends."""
    edges = edges_behind([root], lambda function: function is wanted)
    return [number for function, number in edges if function is wanted]


def memory_of(record: InputRecord) -> int:
    real = record.real
    return real.untyped_storage()._cdata if real is not None and real.layout is torch.strided else -id(record)


def refuse_parts_of_changed_memory(inputs: Sequence[InputRecord], saved: Sequence[InputRecord]) -> None:
    """Refuse to save an input beside one that is changed in place, if both are parts of one tensor: they have one
    version, and the region does not raise it where the program does."""
    changed = {memory_of(record): record for record in inputs if record.version != record.first_version}
    for record in saved if changed else ():
        other = changed.get(memory_of(record))
        if other is not None and other.own_view and record.own_view and record.view.storage is not other.view.storage:
            raise BackwardRaises(
                problem=f"{record.name!r} shares memory with {other.name!r}, which is changed in place"
            )


def use_for_backward(recorder: Recorder, trace: Trace, gradients: Sequence[Node]) -> None:
    """Inputs that only gradients read (such as an index into a tensor of rank 0) become inputs, to be saved."""
    known = set(map(id, trace.inputs))  # the backward of a wrapper may be the first to read what is inside
    trace.inputs += [record for record in recorder.inputs if id(record) not in known]
    waiting = [record for record in trace.inputs if not record.used]
    if not waiting:
        return
    live = live_nodes(recorder.nodes, gradients)
    for record in waiting:
        record.used = record.node in live
    trace.renumber_inputs()


def refuse_late_checks(env: ShapeEnv, nodes: Sequence[Node]) -> None:
    """Refuse assumptions on a size that the backward itself reads: eager cannot run in its place then."""
    late = [node for node in nodes if node.op.name == "local_scalar" and node.origin and node.origin.backward]
    symbols = symbols_read([node for node in late if node.attrs["checks"]])
    for check in env.checks:
        if found := symbols & check.relation.free_symbols():
            names = ", ".join(map(str, found))
            raise DataDependentSize(at=check.location, relation=check.relation, symbols=names, unknown=tuple(found))


def make_tangent(recorder: Recorder, like: TensorSpec, index: int) -> FakeTensor:
    """The gradient of an output `like`: its sizes and format, dense, at offset 0.

    It is contiguous if only strides of size-1 dimensions differ: symbols in such a stride could not be read from a
    tangent, whose strides are the caller's.
    """
    spec = preserved(recorder.env, like)
    known = tuple([recorder.env.simplify(size) for size in spec.sizes])
    if spec.with_view(known, spec.strides, 0).is_contiguous():
        spec = spec.with_sizes(spec.sizes)
    return recorder.fake_of(Node(PRIMS["input"], (), {"index": index, "name": f"tangent_{index}"}, spec))


def _assemble(
    recorder: Recorder,
    trace: Trace,
    outputs: Sequence[Output],
    carried: Sequence[int],
    tangents: Sequence[Node],
    gradients: dict[int, Node],
) -> tuple[Graph, dict[int, int]]:
    """The live part of the recording, and the position of each gradient among its outputs."""
    inputs = (*trace.graph.inputs, *tangents)
    positions = {index: len(outputs) + number for number, index in enumerate(gradients)}
    results = (*outputs, *[Output(node) for node in gradients.values()])
    targets = {trace.graph.inputs[index] for index in carried}
    writes: list[Write] = [write for write in trace.graph.writes if write.target not in targets]
    everything = Graph(inputs, list(recorder.nodes), results, tuple(writes), "joint")
    graph, _ = without_dead_code(everything)
    refuse_without_memory(graph.nodes)
    defined = {*graph.inputs, *graph.nodes}
    for node in graph.nodes:
        for value in node.inputs:
            if value not in defined:
                raise BackwardOfOutside(call=node.op.name, name=value.attrs.get("name", value.op.name))
    return graph, positions
