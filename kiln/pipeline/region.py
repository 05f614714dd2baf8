"""A traced region becomes a callable: by Kiln's own stages, or by a user's backend.

    compile_region(recorder, trace)(*inputs) -> tuple of outputs

Inference is one plan. Where an output needs a gradient, the joint graph is split into a forward and a backward graph;
the forward plan is compiled at once, the backward plan when a backward first runs, for the inputs that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.graph.autograd import Partition, make_joint, partition
from kiln.graph.ir import graph_text
from kiln.graph.trace import Recorder, Trace
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import graph_to_plan
from kiln.runtime.autograd import make_region
from kiln.runtime.executor import load_plan

Region = Callable[..., tuple[Any, ...]]


def compile_region(recorder: Recorder, trace: Trace, context: CompileContext) -> Region:
    """The region of `trace`, compiled by Kiln; `recorder` is still open for the backward pass."""
    context.events.emit("region")
    context.dump.write("torch_calls", lambda: trace.text())
    if not trace.needs_grad:
        return load_plan(graph_to_plan(trace.graph, context), context.events)
    with context.events.stage("joint"):
        joint = make_joint(recorder, trace)
        context.dump.write("joint", lambda: graph_text(joint.graph))
    with context.events.stage("partition"):
        halves = partition(joint)
    return differentiable_region(halves, context)


def differentiable_region(halves: Partition, context: CompileContext) -> Region:
    """Forward now, backward when it is first needed."""
    forward = load_plan(graph_to_plan(halves.forward, context, "forward"), context.events)

    def compile_backward(needed: tuple[bool, ...]) -> Region:
        graph = halves.backward_for(needed)
        return load_plan(graph_to_plan(graph, context, "backward"), context.events)

    return make_region(forward, compile_backward, halves.signature)
