"""A traced region becomes a callable: `compile_region(recorder, trace, context).finish()(*used inputs) -> outputs`.

Inference is one plan; where an output needs a gradient, a forward and a backward plan (`differentiable.py`).
`load_region(compiled.write(), context)` is the same callable in another process.
"""

from __future__ import annotations

from dataclasses import replace

from kiln.graph.autograd.eager_saves import is_derivative
from kiln.graph.autograd.split_step import split_step
from kiln.graph.ir.graph import Graph
from kiln.graph.passes import JOINT_PASSES, run_passes
from kiln.graph.trace import Recorder, Trace
from kiln.pipeline.compiled_plan import compile_plan
from kiln.pipeline.compiled_region import CompiledRegion
from kiln.pipeline.context import CompileContext
from kiln.pipeline.differentiable import compile_differentiable
from kiln.pipeline.first_run import verified
from kiln.pipeline.offloading import host_link
from kiln.pipeline.stages import graph_to_plan, with_versions
from kiln.plan.join import joined
from kiln.plan.plan import Plan
from kiln.plan.text import plan_text
from kiln.runtime.cache.bundle import pack
from kiln.runtime.executor import Executable


def compile_region(recorder: Recorder, trace: Trace, context: CompileContext) -> CompiledRegion:
    """The region of `trace`, compiled by Kiln; `recorder` is still open for the backward pass."""
    context = replace(context, env=trace.env)
    context.events.emit("region")
    context.dump.write("torch_graph", lambda: trace.torch_graph().print_readable(print_output=False))
    if context.options.verify == "first":
        module = trace.torch_graph()  # before the backward is recorded
        region, graph = compile_parts(recorder, trace, context)
        return verified(region, trace, module, graph, context)
    return compile_parts(recorder, trace, context)[0]


def compile_parts(recorder: Recorder, trace: Trace, context: CompileContext) -> tuple[CompiledRegion, Graph]:
    """The region, and the graph that was compiled: that of the trace, or the joint graph."""
    if trace.needs_grad or (recorder.grad_at_start and trace.views_without_history):
        return compile_differentiable(recorder, trace, context)
    compiled = compile_plan(step_to_plan(trace.graph, context), trace.constants, context)

    def finish() -> Executable:
        with context.events.stage("load"):
            run = compiled.executor(context.graphs)
        return run if context.offload is None else context.offload.kept_by(run)

    return CompiledRegion(finish, lambda: pack({"plan": compiled.bundle()})), trace.graph


def step_to_plan(graph: Graph, context: CompileContext) -> Plan:
    """The plan of a region without gradients; a backward in it is lowered apart from the forward."""
    if any(map(is_derivative, graph.nodes)) and "split-step" not in context.without:
        passed = run_passes(graph, context.events, env=context.env, passes=JOINT_PASSES, without=context.without)
        recompute = context.options.recompute == "cheap" and "recompute" not in context.without
        with context.events.stage("partition"):
            budget = context.options.memory_budget
            offload = context.options.activation_offload
            split = split_step(
                passed, context.env, recompute=recompute, budget=budget, link=host_link(), offload=offload
            )
        if split is not None:
            first, second = graph_to_plan(split.first, context, "forward"), graph_to_plan(split.second, context, "step")
            plan = joined(first, second, split.kept, split.outputs)
            if plan is not None:
                plan = with_versions(plan, passed)
                context.dump.write("plan", lambda: plan_text(plan))
                return plan
    return graph_to_plan(graph, context)
