"""Passes over graphs: their context, and the runner (`kiln/support/passes.py` has what all IRs share).

    graph = apply_passes(passes, graph, events)            each pass verified and timed

A pass may replace a value by another with different strides in dimensions of size 1, which do not matter. Outputs of
the graph must have eager's strides even there, so the runner restores them by a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.verify import RULES, STRUCTURE, verify
from kiln.support.events import EventSink
from kiln.support.passes import Pass, run_passes
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import TensorSpec

Checks = Literal["none", "structure", "full"]


@final
@dataclass(frozen=True, slots=True)
class PassContext:
    """What passes may know besides the graph."""

    oracle: GuardFreeOracle


GraphPass = Pass[Graph, PassContext]


@final
@dataclass(frozen=True, slots=True)
class _KeepsStrides:
    """A pass that leaves the strides of outputs unchanged."""

    inner: GraphPass

    @property
    def name(self) -> str:
        return self.inner.name

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        changed, changes = self.inner.run(graph, context)
        return with_strides_of(graph, changed, context), changes


def apply_passes(
    passes: Sequence[GraphPass],
    graph: Graph,
    events: EventSink,
    *,
    env: ShapeEnv | None = None,
    checks: Checks = "structure",
) -> Graph:
    """Run `passes` in order; each reports an event `pass` with its changes and the number of nodes."""
    kept = [_KeepsStrides(step) for step in passes]
    rules = RULES if checks == "full" else STRUCTURE

    def check(graph: Graph, name: str) -> None:
        verify(graph, name, env, rules)

    context = PassContext(GuardFreeOracle(env))
    return run_passes(
        kept, graph, context, events, size=lambda graph: len(graph.nodes), verify=None if checks == "none" else check
    )


def with_strides_of(before: Graph, after: Graph, context: PassContext) -> Graph:
    """`after`, with the strides of the outputs of `before`."""
    builder = Builder(context.oracle)
    outputs = list(after.outputs)
    for number, (old, new) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        wanted, found = old.value.spec, new.value.spec
        if old.alias is not None or not isinstance(wanted, TensorSpec) or not isinstance(found, TensorSpec):
            continue
        if wanted.strides != found.strides:
            layout = {"sizes": wanted.sizes, "strides": wanted.strides, "offset": found.offset}
            outputs[number] = replace(new, value=builder.node("as_strided", new.value, **layout))
    if not builder.nodes:
        return after
    return replace(after, nodes=[*after.nodes, *builder.nodes], outputs=tuple(outputs))
