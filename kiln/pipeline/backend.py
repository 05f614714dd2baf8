"""A user's backend behind Kiln's capture: the torch-level graph and example inputs go in, a callable comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from kiln.graph.trace import Trace
from kiln.pipeline.context import CompileContext
from kiln.support.errors import KilnError

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


class BackendGaveNothing(KilnError):
    code = "KILN5005"
    what = "backend `{backend}` returned {value!r}"
    why = "a backend returns a callable of the graph's inputs"
    try_ = ("return gm.forward",)


def run_backend(backend: Backend, trace: Trace, context: CompileContext) -> Callable[..., tuple[Any, ...]]:
    """The region as `backend` compiled it: takes all inputs of the trace, hands over those that the graph uses."""
    context.events.emit("region")
    module, used = trace.torch_graph()
    context.dump.write("torch_graph", lambda: module.print_readable(print_output=False))
    with context.events.stage("backend"):
        compiled = backend(module, [trace.inputs[place].real for place in used])
    if not callable(compiled):
        raise BackendGaveNothing(backend=getattr(backend, "__name__", backend), value=compiled)
    return select_inputs(compiled, used, len(trace.inputs))


def select_inputs(compiled: Callable[..., Any], used: Sequence[int], count: int) -> Callable[..., tuple[Any, ...]]:
    """`compiled` as a function of all `count` inputs."""
    if list(used) == list(range(count)):
        return compiled
    if len(used) == 1:
        place = used[0]
        return lambda *inputs: compiled(inputs[place])
    if not used:
        return lambda *inputs: compiled()
    pick = itemgetter(*used)
    return lambda *inputs: compiled(*pick(inputs))
