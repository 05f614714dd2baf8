"""A region whose outputs need gradients: two plans behind one autograd node.

    joint graph --passes--> partition --> forward plan, now
                                      --> backward plan, when a backward first runs, for the inputs that need it

On a GPU the plan that the first backward will most likely ask for is made while other processes compile the forward's
kernels, and theirs follow: between forward and backward, and in the forward, they are at work.

The forward plan returns the user's results, the new contents of inputs that autograd must see changed, and what is
only saved; `Partition.signature` says which is which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import final

import torch

from kiln.build.cubins import compiles_elsewhere
from kiln.graph.autograd import Partition, make_joint, partition, with_alias_bases
from kiln.graph.autograd.partition import backward_for
from kiln.graph.autograd.tangents import without_tangents
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.graph.passes import JOINT_PASSES, run_passes
from kiln.graph.trace import Recorder, Trace
from kiln.pipeline.compiled_plan import CompiledPlan, compile_plan, load_plan
from kiln.pipeline.compiled_region import CompiledRegion
from kiln.pipeline.context import CompileContext
from kiln.pipeline.keys import compile_key
from kiln.pipeline.replay_writer import ReplayData, write_replay
from kiln.pipeline.saved_layout import saved_as_made
from kiln.pipeline.stages import Executable, graph_to_plan
from kiln.pipeline.targets import region_target
from kiln.plan.arena import with_donations
from kiln.plan.plan import Plan, PlanOutput, SymbolBinding
from kiln.plan.region import RegionSpec, Saved
from kiln.plan.serialize import decode_plan, encode_plan
from kiln.plan.signature import SavedTensor, Signature
from kiln.runtime.autograd import make_region, saved_extra
from kiln.runtime.cache.bundle import pack
from kiln.runtime.cache.store import content_key
from kiln.runtime.eager_replay import Replay
from kiln.runtime.loader import decode_tensor, encode_tensor
from kiln.runtime.variant import UNREADABLE
from kiln.support.errors import InternalFault, KilnError
from kiln.support.events import EventSink
from kiln.symbolic import symbol


def compile_differentiable(recorder: Recorder, trace: Trace, context: CompileContext) -> CompiledRegion:
    """The region of a trace with gradients; the backward is recorded here, while the recorder is open."""
    with context.events.stage("joint"):
        users = trace
        trace, hidden = with_alias_bases(recorder, trace)
        joint = make_joint(recorder, trace)
        users.add_backward_inputs()
        joint = replace(joint, graph=run_passes(joint.graph, context.events, env=trace.env, passes=JOINT_PASSES))
    context.dump.write("joint", lambda: graph_text(joint.graph))
    with context.events.stage("partition"):
        halves = partition(joint, recompute=context.options.recompute == "cheap")
        halves = saved_as_made(halves, context)
    with context.events.stage("replay"):
        again = write_replay(recorder, trace)
    return differentiable_region(
        *(halves, again, trace.constants, context),
        enables_grad=not recorder.grad_at_start,
        hidden=hidden,
    )


def differentiable_region(
    halves: Partition,
    again: ReplayData,
    constants: Mapping[str, torch.Tensor],
    context: CompileContext,
    *,
    enables_grad: bool = False,
    hidden: int = 0,
) -> CompiledRegion:
    """Forward now, backward when it is first needed, or started now where that takes nothing from the forward."""
    signature = replace(halves.signature, hidden=hidden)
    plan = forward_plan(graph_to_plan(halves.forward, context, "forward"), signature)
    forward = compile_plan(plan, constants, context)
    backward = Backward(lambda: halves.backward, signature, halves.grads, constants, context, bool(again.data))
    if region_target(halves.forward, context.host).is_gpu and compiles_elsewhere(context.options.compile_workers):
        backward.start()
    spec = replace(region_spec(plan, signature), enables_grad=enables_grad)

    def finish() -> Executable:
        with context.events.stage("load"):
            return join_halves(forward.executor(context.graphs, standalone=False), backward, spec, again)

    def write() -> bytes:
        sections = {"forward": forward.bundle(), "spec": encode_plan(spec), **backward.sections()}
        return pack({**sections, **replay_sections(again)})

    return CompiledRegion(finish, write)


def load_differentiable(sections: Mapping[str, memoryview], context: CompileContext) -> Executable:
    """The region that was written; its backward is looked up, or compiled, when it is first needed."""
    text = bytes(sections["backward"]).decode()
    signature, grads = decode_plan(bytes(sections["signature"]))
    constants = {
        name.removeprefix(CONSTANT): decode_tensor(bytes(data))
        for name, data in sections.items()
        if name.startswith(CONSTANT)
    }
    again = read_replay(sections)
    backward = Backward(lambda: parse_graph(text), signature, grads, constants, context, bool(again.data), text)
    forward = load_plan(bytes(sections["forward"]), context.graphs, standalone=False)
    spec: RegionSpec = decode_plan(bytes(sections["spec"]))
    return join_halves(forward, backward, spec, again)


def join_halves(forward: Executable, backward: Backward, spec: RegionSpec, again: ReplayData) -> Executable:
    """The callable with one autograd node."""
    replay = Replay(again.data, again.constants) if again.data else None
    region: Executable = make_region(forward, backward, spec, replay=replay, no_replay=again.reason)
    if spec.enables_grad:
        region = torch.enable_grad()(region)
    signature = backward.signature
    users = slice(signature.hidden, signature.num_outputs)
    if signature.carried or signature.hidden:
        return lambda *inputs: region(*inputs)[users]
    return region


def replay_sections(again: ReplayData) -> dict[str, bytes]:
    """What `read_replay` reads."""
    constants = {f"{REPLAYED}{number}": encode_tensor(one) for number, one in enumerate(again.constants)}
    return {"replay": again.data, "no_replay": again.reason.encode(), **constants}


def read_replay(sections: Mapping[str, memoryview]) -> ReplayData:
    count = sum(name.startswith(REPLAYED) for name in sections)
    constants = tuple(decode_tensor(bytes(sections[f"{REPLAYED}{number}"])) for number in range(count))
    return ReplayData(bytes(sections["replay"]), constants, bytes(sections["no_replay"]).decode())


CONSTANT, REPLAYED = "constant/", "replayed/"
Mask = tuple[bool, ...]


@final
@dataclass
class Backward:
    """Compiles the backward for the inputs that need it and the tangents that there are.

    What one process compiled, the next one finds on disk.
    """

    make_graph: Callable[[], Graph]
    signature: Signature
    grads: tuple[int | None, ...]
    constants: Mapping[str, torch.Tensor]
    context: CompileContext
    replayable: bool = False
    text: str = ""
    """The graph in writing; made where it is needed."""
    ahead: dict[tuple[Mask, Mask], tuple[CompiledPlan, EventSink]] = field(default_factory=dict)
    """What was started before it was asked for, and what it had to tell."""

    def __call__(self, needed: Mask, given: Mask) -> Executable | None:
        """`needed`: inputs that want a gradient; `given`: tangents that there are.

        None where the compiler fails and the region can be run again by eager: the gradients come from that.
        """
        events = self.context.events
        with events.stage("compile"):
            try:
                return self.find_or_compile(needed, given)
            except Exception as fault:
                if not self.replayable or self.context.tell is None:
                    raise
                if isinstance(fault, KilnError):
                    self.context.tell(fault, None)
                else:
                    self.context.tell(InternalFault(stage=events.failed_stage, problem=repr(fault)), fault)
                return None

    def find_or_compile(self, needed: Mask, given: Mask) -> Executable:
        key = self.key(needed, given)
        stored = self.context.store.get("backward", key) if key else None
        if stored is not None:
            with suppress(*UNREADABLE):  # written by another version, or damaged
                return load_plan(stored, self.context.graphs, standalone=False)
        compiled, told = self.ahead.pop((needed, given), None) or (self.compile(needed, given, self.context), None)
        compiled = replace(compiled, events=self.context.events)
        if key:
            self.context.store.put("backward", key, compiled.bundle())
        made = compiled.executor(self.context.graphs, standalone=False)
        for event in told.events if told is not None else ():
            if event.kind != "stage":  # its time was told when it was spent
                self.context.events.record(event)
        return made

    def key(self, needed: Mask, given: Mask) -> str:
        """In the store; empty where nothing is kept."""
        if not self.context.options.cache:
            return ""
        settings = compile_key("backward", self.context.options, self.context.host).digest()
        # Which inputs the gradients belong to stands in the signature: equal graphs may differ in it.
        places = repr((needed, given, self.grads)), encode_plan(self.signature).hex()
        return content_key(settings, self.written(), *places, *sorted(self.constants))

    def start(self) -> None:
        """Start to compile the gradients of all inputs that have one, as a training step asks for.

        Nothing is told of it before it is used: another backward may be asked for, or none.
        """
        needed, given = tuple([place is not None for place in self.grads]), likely_tangents(self.signature)
        if self.context.dump.folder is not None:  # texts are written in the order in which things are used
            return
        with self.context.events.stage("backward"), suppress(Exception):  # who asks for the backward is told
            key = self.key(needed, given)
            if not key or self.context.store.get("backward", key) is None:
                quiet = EventSink()
                self.ahead[needed, given] = self.compile(needed, given, replace(self.context, events=quiet)), quiet

    def compile(self, needed: Sequence[bool], given: Sequence[bool], context: CompileContext) -> CompiledPlan:
        whole, absent = without_tangents(self.make_graph(), given)
        needed = [one and number not in absent for one, number in zip(needed, self.grads, strict=True)]
        graph = backward_for(whole, self.grads, needed)
        # Without the environment: it may name a size by an equal symbol, which is no input of the backward.
        plan = graph_to_plan(graph, replace(context, env=None), "backward")
        plan = backward_plan(plan, self.signature, needed)
        # Tangents come in any layout, and so do saved values that a hook of the user has kept elsewhere.
        return compile_plan(plan, self.constants, context, range(len(plan.inputs)))

    def written(self) -> str:
        if not self.text:
            self.text = graph_text(self.make_graph())
        return self.text

    def sections(self) -> dict[str, bytes]:
        """All that a later process needs to go on from here."""
        constants = {f"{CONSTANT}{key}": encode_tensor(tensor) for key, tensor in self.constants.items()}
        pair = encode_plan((self.signature, self.grads))
        return {"signature": pair, "backward": self.written().encode(), **constants}


def likely_tangents(signature: Signature) -> Mask:
    """Which tangents the first backward will have: that of the loss, the first result that is one number, or all."""
    losses = [place for place, one in enumerate(signature.tangents) if not one.spec.sizes]
    return tuple([not losses or place == losses[0] for place in range(len(signature.tangents))])


def forward_plan(plan: Plan, signature: Signature) -> Plan:
    """Numbers that backward needs are returned behind everything else."""
    numbers = [PlanOutput(value=symbol(one.name)) for one in signature.saved if isinstance(one, SymbolBinding)]
    return replace(plan, outputs=(*plan.outputs, *numbers)) if numbers else plan


def region_spec(plan: Plan, signature: Signature) -> RegionSpec:
    """What the runtime has to know of the forward plan."""
    count = signature.num_outputs + len(signature.carried)
    tangent_of = {one.output for one in signature.tangents}
    return RegionSpec(
        num_inputs=signature.num_inputs,
        outputs=plan.outputs[:count],
        differentiable=tuple(place in tangent_of for place in range(count)),
        saved=tuple(saved_values(plan, signature, count)),
        mutated=plan.mutated,
        written=tuple((one.input, one.output) for one in signature.carried),
        optional_tangents=True,
    )


def saved_values(plan: Plan, signature: Signature, count: int) -> Sequence[Saved]:
    """The entry of each saved value; outputs behind the first `count` are extras."""
    entries: list[Saved] = []
    next_number = len(plan.outputs) - sum(isinstance(one, SymbolBinding) for one in signature.saved)
    for one in signature.saved:
        if isinstance(one, SymbolBinding):
            entries.append(Saved("extra", next_number))
            next_number += 1
        elif one.of == "input":
            entries.append(Saved("input", one.index))
        elif one.index < count and plan.outputs[one.index].alias_input is None:
            entries.append(Saved("output", one.index))
        else:
            entries.append(saved_extra(plan, one.index))
    return entries


def backward_plan(plan: Plan, signature: Signature, needed: Sequence[bool]) -> Plan:
    """One gradient per input of the forward: None where it is not needed or there is none."""
    places = [place for place in signature.gradients if needed[place]]
    first_extra = signature.num_outputs + len(signature.carried)
    own = [
        number
        for number, one in enumerate(signature.saved)
        if isinstance(one, SavedTensor) and one.of == "output" and one.index >= first_extra
    ]
    plan = with_donations(plan, own)
    outputs = [PlanOutput()] * signature.num_inputs
    for place, gradient in zip(places, plan.outputs, strict=True):
        # One tensor may be the gradient of several inputs: the plan counts the gradients that there are.
        shared = gradient.alias_output
        outputs[place] = gradient if shared is None else replace(gradient, alias_output=places[shared])
    return replace(plan, outputs=tuple(outputs))
