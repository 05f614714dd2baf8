"""Compiles the backward of a region for the inputs that need a gradient and the tangents that arrive.

    loss.backward()      needed (x: no, w: yes), given (loss: yes, logits: no)
                         --> looked up in the store, precompiled, or compiled now

Another mask is another plan. On a GPU the most likely one is precompiled: other processes compile its kernels behind
those of the forward, while the forward already runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import ClassVar, final

import torch

from kiln.graph.autograd.absent_gradients import with_existence
from kiln.graph.autograd.partition import backward_for
from kiln.graph.autograd.tangents import without_inputs, without_tangents
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.text import graph_text
from kiln.pipeline.compile_key import compile_key
from kiln.pipeline.compiled_plan import CompiledPlan, compile_plan, load_plan
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import Executable, graph_to_plan
from kiln.plan.arena import with_donations
from kiln.plan.plan import Plan, PlanOutput
from kiln.plan.serialize import encode_plan
from kiln.plan.signature import SavedTensor, Signature
from kiln.runtime.cache.store import content_key
from kiln.runtime.loader import encode_tensor
from kiln.runtime.variant import UNREADABLE
from kiln.support.errors import InternalFault, KilnError
from kiln.support.events import Event, EventSink

Mask = tuple[bool, ...]


@final
@dataclass
class BackwardCompiler:
    """The backward graph of a region and its plans; what one process compiled, the next one finds in the store."""

    CONSTANT: ClassVar[str] = "constant/"
    """Prefix of the sections that hold constants."""

    make_graph: Callable[[], Graph]
    signature: Signature
    grads: tuple[int | None, ...]
    constants: Mapping[str, torch.Tensor]
    context: CompileContext
    replayable: bool = False
    text: str = ""
    """The graph in writing, made on demand."""
    precompiled: dict[tuple[Mask, Mask], tuple[CompiledPlan, Sequence[Event]]] = field(default_factory=dict)
    """Plans compiled before they were needed, with the events that their use emits."""

    def __call__(self, needed: Mask, given: Mask) -> Executable | None:
        """`needed`: inputs that need a gradient; `given`: tangents that arrive.

        None where the compiler fails and the region can be replayed by eager: the gradients come from that.
        """
        events = self.context.events
        with self.context.counting(), events.stage("compile"):
            try:
                return self.find_or_compile(needed, given)
            except Exception as fault:
                if not self.replayable or self.context.report_eager is None:
                    raise
                if isinstance(fault, KilnError):
                    self.context.report_eager(fault, None)
                else:
                    problem = InternalFault(stage=events.failed_stage, problem=repr(fault))
                    self.context.report_eager(problem, fault)
                return None

    def find_or_compile(self, needed: Mask, given: Mask) -> Executable:
        key = self.key(needed, given)
        stored = self.context.store.get("backward", key) if key else None
        if stored is not None:
            with suppress(*UNREADABLE):  # damaged, or written by another version
                return load_plan(stored, self.context.graphs, standalone=False)
        found = self.precompiled.pop((needed, given), None)
        compiled, deferred_events = found or (self.compile(needed, given, self.context), ())
        compiled = replace(compiled, events=self.context.events)
        if key:
            self.context.store.put("backward", key, compiled.bundle())
        made = compiled.executor(self.context.graphs, standalone=False)
        for event in deferred_events:
            if event.kind != "stage":  # its time was counted when it was spent
                self.context.events.record(event)
        return made

    def key(self, needed: Mask, given: Mask) -> str:
        """In the store; empty where nothing is kept."""
        if not self.context.options.cache:
            return ""
        settings = compile_key("backward", self.context.options, self.context.host).digest()
        # The signature says which inputs the gradients belong to: equal graphs may differ in it.
        masks = repr((needed, given, self.grads)), encode_plan(self.signature).hex()
        return content_key(settings, self.written(), *masks, *sorted(self.constants))

    def precompile(self) -> None:
        """Start to compile the gradients of all inputs that have one, as a training step needs them.

        Events and errors wait until the plan is used: another backward may be needed, or none.
        """
        needed, given = tuple([gradient is not None for gradient in self.grads]), likely_tangents(self.signature)
        if self.context.dump.folder is not None:  # dumps are written in the order of use
            return
        with self.context.events.stage("backward"), suppress(Exception):  # the use will raise it again
            key = self.key(needed, given)
            if not key or self.context.store.get("backward", key) is None:
                sink = EventSink()
                compiled = self.compile(needed, given, replace(self.context, events=sink))
                self.precompiled[needed, given] = compiled, sink.events

    def compile(self, needed: Sequence[bool], given: Sequence[bool], context: CompileContext) -> CompiledPlan:
        full, absent = without_tangents(self.make_graph(), given)
        saved = [not isinstance(value, SavedTensor) or value.read_with(given) for value in self.signature.saved]
        full = without_inputs(full, [number for number, read in enumerate(saved) if not read])
        signature = replace(self.signature, saved=tuple(compress(self.signature.saved, saved)))
        needed = [need and gradient not in absent for need, gradient in zip(needed, self.grads, strict=True)]
        graph = backward_for(full, self.grads, needed)
        graph, existence = with_existence(graph, graph.inputs[len(graph.inputs) - sum(given) :])
        # Without the environment: it may name a size by an equal symbol, which is no input of the backward.
        plan = graph_to_plan(graph, replace(context, env=None), "backward")
        plan = backward_plan(plan, signature, needed, existence, donates="memory-reuse" not in context.without)
        # Tangents arrive in any layout, and so do saved values that a hook of the user has stored elsewhere.
        return compile_plan(plan, self.constants, context, range(len(plan.inputs)))

    def written(self) -> str:
        if not self.text:
            self.text = graph_text(self.make_graph())
        return self.text

    def sections(self) -> dict[str, bytes]:
        """All that a later process needs to make this object again."""
        constants = {f"{self.CONSTANT}{key}": encode_tensor(tensor) for key, tensor in self.constants.items()}
        pair = encode_plan((self.signature, self.grads))
        return {"signature": pair, "backward": self.written().encode(), **constants}


def likely_tangents(signature: Signature) -> Mask:
    """The tangents of the likely first backward: that of the loss (the first scalar result), or all."""
    scalars = [number for number, tangent in enumerate(signature.tangents) if not tangent.spec.sizes]
    return tuple([not scalars or number == scalars[0] for number in range(len(signature.tangents))])


def backward_plan(
    plan: Plan,
    signature: Signature,
    needed: Sequence[bool],
    existence: Sequence[int | None],
    *,
    donates: bool = True,
) -> Plan:
    """`plan` with an output per input of the forward: its gradient, or None.

    `existence`: for each gradient the output that says whether it exists. If there are such, an output per input that
    says so follows, or None. `donates`: it may overwrite saved values.
    """
    inputs = [number for number in signature.gradients if needed[number]]
    first_extra = signature.num_outputs + len(signature.carried)
    donated = [
        number
        for number, saved in enumerate(signature.saved)
        if isinstance(saved, SavedTensor) and saved.of == "output" and saved.index >= first_extra
    ]
    plan = with_donations(plan, donated) if donates else plan
    outputs = [PlanOutput()] * signature.num_inputs
    for number, gradient in zip(inputs, plan.outputs, strict=False):
        # A tensor may be the gradient of several inputs; `alias_output` counts gradients, not inputs.
        shared = gradient.alias_output
        outputs[number] = gradient if shared is None else replace(gradient, alias_output=inputs[shared])
    return replace(plan, outputs=(*outputs, *existence_outputs(plan, inputs, existence, signature.num_inputs)))


def existence_outputs(
    plan: Plan, inputs: Sequence[int], existence: Sequence[int | None], count: int
) -> list[PlanOutput]:
    outputs = [PlanOutput()] * count
    first: dict[int, int] = {}
    for number, answer in zip(inputs, existence, strict=True):
        if answer is not None:
            owner = first.setdefault(answer, count + number)
            shared = None if owner == count + number else owner
            outputs[number] = replace(plan.outputs[answer], alias_output=shared)
    return outputs if first else []
