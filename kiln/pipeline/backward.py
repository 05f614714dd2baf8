"""Compiles the backward of a region for the inputs that need a gradient and the tangents that arrive.

    loss.backward()      needed (x: no, w: yes), given (loss: yes, logits: no)
                         --> looked up in the store, precompiled, or compiled now

Another mask is another plan. On a GPU the most likely one is precompiled: other processes compile its kernels behind
those of the forward, while the forward already runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar, final

import torch

from kiln.pipeline.compile_key import compile_key
from kiln.pipeline.context import CompileContext
from kiln.plan.serialize import encode_plan
from kiln.plan.signature import Signature
from kiln.runtime.cache.store import content_key
from kiln.runtime.executor import Executable
from kiln.runtime.loader import load_plan
from kiln.runtime.variant import UNREADABLE
from kiln.support.events import Event, EventSink
from kiln.support.late import late
from kiln.support.records import dataclass
from kiln.tensor.encoding import encode_tensor

if TYPE_CHECKING:
    from kiln.graph.ir.graph import Graph
    from kiln.graph.ir.text import graph_text
    from kiln.pipeline.backward_compile import compile_backward
    from kiln.pipeline.compiled_plan import CompiledPlan
else:
    graph_text = late("kiln.graph.ir.text", "graph_text")
    compile_backward = late("kiln.pipeline.backward_compile", "compile_backward")

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
                if not self.replayable:
                    raise
                self.context.report_failure(fault)
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
        if not self.context.options.cache or self.context.offload is not None:
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

    def compile(self, needed: Mask, given: Mask, context: CompileContext) -> CompiledPlan:
        return compile_backward(self.make_graph(), self.signature, self.grads, self.constants, context, needed, given)

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
