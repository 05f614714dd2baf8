"""A user's backend behind Kiln's capture: the torch-level graph and example inputs go in, a callable comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch._C import _functorch as levels

from kiln.graph.offload.part import TorchBackend
from kiln.graph.trace import InputRecord, Trace
from kiln.pipeline.context import CompileContext
from kiln.runtime.executor import Executable
from kiln.support.errors import KilnError
from kiln.symbolic import Expr, ShapeEnv
from kiln.tensor.spec import ScalarSpec


class BackendGaveNothing(KilnError):
    code = "KILN5005"
    what = "backend `{backend}` returned {value!r}"
    why = "a backend returns a callable of the graph's inputs"
    try_ = ("return gm.forward",)


def example(record: InputRecord, env: ShapeEnv) -> object:
    """The argument of this call: a tensor, or the number that an integer symbol stands for."""
    spec = record.spec
    if isinstance(spec, ScalarSpec) and isinstance(spec.value, Expr):
        return env.hint(spec.value)
    return record.real


def uncompiled(module: torch.fx.GraphModule, inputs: Sequence[object]) -> Executable:
    """The backend that compiles nothing."""
    forward: Executable = module.forward
    return forward


def run_backend(backend: TorchBackend, trace: Trace, context: CompileContext) -> Executable:
    """The region, compiled by `backend`. Its inputs are the placeholders of the torch-level graph."""
    context.events.emit("region")
    module = trace.torch_graph()
    placeholders = {node.target for node in module.graph.nodes if node.op == "placeholder"}
    for record in trace.inputs:
        record.used = record.name in placeholders
    context.dump.write("torch_graph", lambda: module.print_readable(print_output=False))
    with context.events.stage("backend"):
        made = backend(module, [example(record, trace.env) for record in trace.used_inputs])
    if not callable(made):
        raise BackendGaveNothing(backend=getattr(backend, "__name__", backend), value=made)
    compiled = cast(Executable, made)
    opens = any(getattr(node.target, "__module__", "") == levels.__name__ for node in module.graph.nodes)
    return closing_levels(compiled) if opens else compiled


def closing_levels(run: Executable) -> Executable:
    """`run`, which opens levels of function transforms; an error in it must not leave them open."""

    def closed(*inputs: object) -> tuple[object, ...]:
        depth = levels.get_dynamic_layer_stack_depth()
        try:
            return run(*inputs)
        except BaseException:
            levels.pop_dynamic_layer_stack_and_undo_to_depth(depth)
            raise

    return closed
