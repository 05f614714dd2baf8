"""Regions and checks of speculations that another process compiled, made from the bytes that it wrote.

Loads no compiler: the backward of a region is compiled, if it is in no store, when it is first needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from kiln.pipeline.backward import BackwardCompiler
from kiln.pipeline.context import CompileContext
from kiln.pipeline.gradient_regions import GradientRegions
from kiln.pipeline.redraw import Redraw
from kiln.plan.region import RegionSpec
from kiln.plan.serialize import decode_plan
from kiln.runtime.autograd import make_region
from kiln.runtime.cache.bundle import unpack
from kiln.runtime.eager_replay import EagerReplay, EagerReplayData, read_eager_replay
from kiln.runtime.executor import Executable
from kiln.runtime.loader import load_plan
from kiln.runtime.speculation_check import SpeculationPlan
from kiln.runtime.subclasses import RegionWrappers
from kiln.support.late import late
from kiln.tensor.encoding import decode_tensor

if TYPE_CHECKING:
    from kiln.graph.ir.parse import parse_graph
    from kiln.graph.ir.text import graph_text
    from kiln.graph.passes.known_values import Definitions
    from kiln.graph.passes.known_values import Definitions as make_definitions
else:
    parse_graph = late("kiln.graph.ir.parse", "parse_graph")
    graph_text = late("kiln.graph.ir.text", "graph_text")
    make_definitions = late("kiln.graph.passes.known_values", "Definitions")


def load_region(data: bytes, context: CompileContext) -> Executable:
    """The region that was written. Raises KilnError."""
    sections = unpack(data)
    if "plan" in sections:
        return load_plan(bytes(sections["plan"]), context.graphs)
    return load_differentiable(sections, context)


def load_differentiable(sections: Mapping[str, memoryview], context: CompileContext) -> Executable:
    """The region that was written; its backward is looked up, or compiled, when it is first needed."""
    text = bytes(sections["backward"]).decode()
    signature, grads = decode_plan(bytes(sections["signature"]))
    prefix = BackwardCompiler.CONSTANT
    constants = {
        name.removeprefix(prefix): decode_tensor(bytes(data))
        for name, data in sections.items()
        if name.startswith(prefix)
    }
    replay = read_eager_replay(sections)
    redraw = None
    if "redraw" in sections:
        written = bytes(sections["redraw"]).decode()
        redraw = Redraw(lambda: parse_graph(written), context)
    backward = BackwardCompiler(
        lambda: parse_graph(text), signature, grads, constants, context, bool(replay.data), text
    )
    forward = load_plan(bytes(sections["forward"]), context.graphs, standalone=False)
    spec: RegionSpec = decode_plan(bytes(sections["spec"]))
    return join_plans(forward, backward, spec, replay, redraw=redraw, define=read_definitions(sections))


def defined_sections(define: Callable[[], Definitions] | None) -> dict[str, bytes]:
    """What `read_definitions` reads."""
    if define is None:
        return {}
    defined = define()
    return {"defined": graph_text(defined.graph).encode(), "defined_saved": json.dumps(defined.saved).encode()}


def read_definitions(sections: Mapping[str, memoryview]) -> Callable[[], Definitions] | None:
    if "defined" not in sections:
        return None
    text, saved = bytes(sections["defined"]).decode(), tuple(json.loads(bytes(sections["defined_saved"])))
    return lambda: make_definitions(parse_graph(text), saved)


def join_plans(
    forward: Executable,
    backward: BackwardCompiler,
    spec: RegionSpec,
    data: EagerReplayData,
    wrappers: RegionWrappers | None = None,
    redraw: Redraw | None = None,
    define: Callable[[], Definitions] | None = None,
) -> Executable:
    """The callable with one autograd node, which returns the user's results."""
    replay = EagerReplay(data.data, data.constants, data.functions) if data.data else None
    find = GradientRegions(replay, spec, backward.context, define).find if replay and not wrappers else lambda *_: None
    named = {"replay": replay, "find_gradients": find, "no_replay": data.reason, "wrappers": wrappers}
    region: Executable = make_region(forward, backward, spec, redraw=redraw, **named)  # type: ignore[arg-type]
    if spec.enables_grad:
        region = torch.enable_grad()(region)
    signature = backward.signature
    results = slice(signature.hidden_outputs, signature.num_outputs)
    if signature.carried or signature.hidden_outputs:
        return lambda *inputs: region(*inputs)[results]
    return region


def load_speculation(data: bytes) -> SpeculationPlan:
    """What `SpeculationPlan.write` of an earlier process wrote. Raises KilnError."""
    return SpeculationPlan(load_plan(data), lambda: data)
