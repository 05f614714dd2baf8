"""A region whose outputs need gradients: a forward and a backward plan behind one autograd node.

    joint graph --passes--> partition --> forward plan, now
                                      --> backward plan, for the inputs that need a gradient (`backward.py`)

The forward plan returns the user's results, the new contents of inputs whose mutation autograd must see, and the
values that are only saved; `Partition.signature` says which is which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from kiln.build.cubins import compiles_elsewhere
from kiln.graph.autograd import Partition, make_joint, partition, with_alias_bases
from kiln.graph.autograd.dependencies import refuse_tangled_results
from kiln.graph.autograd.eager_saves import UNUSED, EagerSaves
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import nodes_between, without_dead_code
from kiln.graph.ir.text import graph_text
from kiln.graph.passes import JOINT_PASSES, run_passes
from kiln.graph.passes.equal_sizes import with_one_symbol
from kiln.graph.passes.known_values import Definitions
from kiln.graph.trace import Recorder, Trace
from kiln.pipeline.backward import BackwardCompiler
from kiln.pipeline.compiled_plan import compile_plan
from kiln.pipeline.compiled_region import CompiledRegion
from kiln.pipeline.context import CompileContext
from kiln.pipeline.eager_replay_writer import write_eager_replay
from kiln.pipeline.offloading import host_link
from kiln.pipeline.redraw import Redraw
from kiln.pipeline.region_file import defined_sections, join_plans
from kiln.pipeline.saved_layout import saved_as_made
from kiln.pipeline.stages import graph_to_plan, other_names
from kiln.pipeline.targets import region_target
from kiln.plan.plan import Plan, PlanOutput, SymbolBinding
from kiln.plan.region import RegionSpec, Saved
from kiln.plan.serialize import encode_plan
from kiln.plan.signature import SavedTensor, Signature
from kiln.runtime.autograd import saved_extra
from kiln.runtime.cache.bundle import pack
from kiln.runtime.eager_replay import EagerReplayData
from kiln.runtime.executor import Executable
from kiln.runtime.subclasses import RegionWrappers
from kiln.symbolic import Int, Symbol, symbol


def compile_differentiable(recorder: Recorder, trace: Trace, context: CompileContext) -> tuple[CompiledRegion, Graph]:
    """The region of a trace with gradients, and its joint graph; the backward is recorded here, while the recorder is
    open."""
    with context.events.stage("joint"):
        original = trace
        trace, hidden_outputs = with_alias_bases(recorder, trace)
        joint = make_joint(recorder, trace)
        refuse_tangled_results(joint.forward_outputs, joint.depends)
        whole = joint.graph
        known = set(map(id, original.inputs))
        original.inputs += [record for record in trace.inputs if id(record) not in known]
        original.renumber_inputs()
        passed = run_passes(joint.graph, context.events, env=trace.env, passes=JOINT_PASSES, without=context.without)
        joint, computed, before = replace(joint, graph=passed), passed, dict[Node, Node]()
        if context.known is not None:
            read, before = context.known(passed)
            saves = joint.eager_saves and known_to_stay(joint.eager_saves, read.inputs, before)
            joint = replace(joint, graph=without_dead_code(read)[0], eager_saves=saves)
            context = replace(context, known=None)
    context.dump.write("joint", lambda: graph_text(joint.graph))
    with context.events.stage("replay"):
        replay = write_eager_replay(recorder, trace, whole)
    with context.events.stage("partition"):
        recompute = context.options.recompute == "cheap" and "recompute" not in context.without
        partitioned = partition(
            joint,
            recompute=recompute,
            keep_draws=bool(replay.data),
            keep_inputs=replay.old,
            budget=context.options.memory_budget,
            link=host_link(),
            offload=context.options.activation_offload,
        )
        partitioned = saved_as_made(partitioned, context)
    enables_grad = not recorder.grad_at_start
    region = differentiable_region(
        partitioned, replay, trace.constants, context, enables_grad, hidden_outputs, trace.creations, joint.wrappers,
        lambda: definitions(computed, partitioned, before),
    )  # fmt: skip
    return region, whole


def known_to_stay(saves: EagerSaves, inputs: Sequence[Node], before: Mapping[Node, Node]) -> EagerSaves:
    """What an earlier region has saved does not change: its versions are checked there."""
    known = {number: UNUSED for number, node in enumerate(inputs) if node in before}
    return replace(saves, inputs={**saves.inputs, **known})


def definitions(graph: Graph, parts: Partition, before: Mapping[Node, Node]) -> Definitions:
    """How what the forward of `parts` saves is computed in `graph`. `before`: see `read_known_values`."""
    nodes, saved = set(graph.nodes), dict[int, Node]()
    for number, entry in enumerate(parts.saved):
        if isinstance(entry, SavedTensor) and entry.of == "output":
            value = parts.forward.outputs[entry.index].value
            saved[number] = before.get(value, value)
    saved = {number: node for number, node in saved.items() if node in nodes}
    inputs = parts.forward.inputs
    given = [(number, before[node]) for number, node in enumerate(inputs) if node in before]
    needed = [*saved.values(), *[node for _, node in given]]
    outputs = tuple(map(Output, saved.values()))
    defined = Graph(inputs, nodes_between(graph.nodes, inputs, needed), outputs, (), "defined")
    return Definitions(defined, tuple(saved), tuple(given))


def differentiable_region(
    partitioned: Partition,
    replay: EagerReplayData,
    constants: Mapping[str, torch.Tensor],
    context: CompileContext,
    enables_grad: bool = False,
    hidden_outputs: int = 0,
    creations: tuple[tuple[int, int], ...] = (),
    wrappers: RegionWrappers | None = None,
    define: Callable[[], Definitions] | None = None,
) -> CompiledRegion:
    """Compiles the forward; the backward is compiled when it is first needed, or started now beside the forward."""
    signature = replace(partitioned.signature, hidden_outputs=hidden_outputs)
    names = other_names(partitioned.forward, context)
    plan = forward_plan(graph_to_plan(partitioned.forward, context, "forward"), signature, names)
    forward = compile_plan(plan, constants, context)
    derivative = with_one_symbol(partitioned.backward, other_names(partitioned.backward, context))
    backward = BackwardCompiler(lambda: derivative, signature, partitioned.grads, constants, context, bool(replay.data))
    if region_target(partitioned.forward, context.host).is_gpu and compiles_elsewhere(context.options.compile_workers):
        backward.precompile()
    results = partitioned.forward.outputs[: signature.num_outputs]
    detached = [
        number
        for number, result in enumerate(results)
        if result.alias and result.alias.view and not result.requires_grad
    ]
    spec = replace(
        region_spec(plan, signature),
        enables_grad=enables_grad,
        detached=tuple(detached),
        reached=signature.reached,
        creations=creations,
        draws=partitioned.draws,
        unread=replay.unread,
        redrawn=partitioned.redrawn,
    )
    graph = partitioned.redraw
    redraw = None if graph is None else Redraw(lambda: graph, context)

    def finish() -> Executable:
        with context.events.stage("load"):
            run = forward.executor(context.graphs, standalone=False)
            return join_plans(run, backward, spec, replay, wrappers, redraw, define)

    def write() -> bytes:
        sections = {"forward": forward.bundle(), "spec": encode_plan(spec), **backward.sections()}
        again = {} if redraw is None else redraw.sections()
        return pack({**sections, **replay.sections(), **again, **defined_sections(define if replay.data else None)})

    return CompiledRegion(finish, write if wrappers is None and not replay.functions else None)


def forward_plan(plan: Plan, signature: Signature, names: Mapping[Symbol, Int]) -> Plan:
    """Sizes that the backward needs are returned behind everything else. `names`: what the plan calls them instead."""
    symbols = [symbol(saved.name) for saved in signature.saved if isinstance(saved, SymbolBinding)]
    sizes = [PlanOutput(value=names.get(size, size)) for size in symbols]
    return replace(plan, outputs=(*plan.outputs, *sizes)) if sizes else plan


def region_spec(plan: Plan, signature: Signature) -> RegionSpec:
    """What the runtime has to know of the forward plan."""
    count = signature.num_outputs + len(signature.carried)
    with_tangent = {tangent.output for tangent in signature.tangents}
    own = [output.alias_input is None for output in plan.outputs]
    return RegionSpec(
        num_inputs=signature.num_inputs,
        outputs=plan.outputs[:count],
        differentiable=tuple(output in with_tangent for output in range(count)),
        saved=tuple(saved_values(plan, signature, count)),
        mutated=plan.mutated,
        written=tuple((carried.input, carried.output) for carried in signature.carried),
        optional_tangents=True,
        depends=signature.depends,
        parts=signature.parts,
        watched=tuple([entry for entry in signature.watched if entry.of == "input" or own[entry.index]]),
        ends=tuple([tangent.ends for tangent in signature.tangents if tangent.ends is not None]),
    )


def saved_values(plan: Plan, signature: Signature, count: int) -> Sequence[Saved]:
    """The entry of each saved value; outputs behind the first `count` are extras."""
    entries: list[Saved] = []
    next_size = len(plan.outputs) - sum(isinstance(saved, SymbolBinding) for saved in signature.saved)
    for saved in signature.saved:
        if isinstance(saved, SymbolBinding):
            entries.append(Saved("extra", next_size))
            next_size += 1
        elif saved.of == "input":
            entries.append(Saved("input", saved.index, readers=saved.readers))
        elif saved.index < count and plan.outputs[saved.index].alias_input is None:
            entries.append(Saved("output", saved.index, readers=saved.readers))
        else:
            entries.append(replace(saved_extra(plan, saved.index), readers=saved.readers))
    return entries
