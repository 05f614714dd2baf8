"""A traced region becomes a callable: `compile_region(recorder, trace, context)(*used inputs) -> tuple of outputs`.

Inference is one plan; where an output needs a gradient, a forward and a backward plan (`differentiable.py`).
"""

from __future__ import annotations

from kiln.graph.trace import Recorder, Trace
from kiln.pipeline.context import CompileContext
from kiln.pipeline.differentiable import compile_differentiable
from kiln.pipeline.stages import Executable, graph_to_plan, plan_to_executor


def compile_region(recorder: Recorder, trace: Trace, context: CompileContext) -> Executable:
    """The region of `trace`, compiled by Kiln; `recorder` is still open for the backward pass."""
    context.events.emit("region")
    context.dump.write("torch_graph", lambda: trace.torch_graph().print_readable(print_output=False))
    if trace.needs_grad:
        return compile_differentiable(recorder, trace, context)
    return plan_to_executor(graph_to_plan(trace.graph, context), trace.constants, context)
