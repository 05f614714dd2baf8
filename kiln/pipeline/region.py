"""A traced region becomes a callable: `compile_region(recorder, trace, context)(*used inputs) -> tuple of outputs`.

Inference is one plan. Where an output needs a gradient, the joint graph is split into a forward and a backward graph;
the forward plan is compiled at once, the backward plan when a backward first runs, for the inputs that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.trace import Recorder, Trace
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import graph_to_plan
from kiln.runtime.executor import make_executor
from kiln.runtime.libraries import compile_kernels

Region = Callable[..., tuple[Any, ...]]


def compile_region(recorder: Recorder, trace: Trace, context: CompileContext) -> Region:
    """The region of `trace`, compiled by Kiln; `recorder` is still open for the backward pass."""
    context.events.emit("region")
    return compile_graph(trace.graph, trace.constants, context)


def compile_graph(
    graph: Graph, constants: Mapping[str, torch.Tensor], context: CompileContext, label: str = ""
) -> Region:
    """The executor of a graph's plan."""
    plan = graph_to_plan(graph, context, label)
    with context.events.stage("g++"):
        libraries = compile_kernels(plan.kernels, context.store, context.events)
    with context.events.stage("load"):
        return make_executor(plan, libraries, [constants[key] for key in plan.constants])
