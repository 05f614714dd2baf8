"""Passes over graphs: what they are handed, and the runner (`kiln/support/passes.py` has what all IRs share).

    graph = apply_passes(passes, graph, events)            each pass verified and timed

A pass may replace a value by one whose strides differ in dimensions of size 1, where they address nothing. Outputs of
the graph must have eager's strides even there, so the runner puts a view behind such an output.
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
    """What a pass is handed."""

    oracle: GuardFreeOracle


GraphPass = Pass[Graph, PassContext]


@final
@dataclass(frozen=True, slots=True)
class _KeepsStrides:
    """A pass behind which outputs have the strides that they had before it."""

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
    """Run `passes` in order. Each reports an event `pass` with the number of changes and of nodes after it."""
    kept = [_KeepsStrides(step) for step in passes]
    rules = RULES if checks == "full" else STRUCTURE

    def check(graph: Graph, name: str) -> None:
        verify(graph, name, env, rules)

    context = PassContext(GuardFreeOracle(env))
    return run_passes(
        kept, graph, context, events, size=lambda graph: len(graph.nodes), verify=None if checks == "none" else check
    )


def with_strides_of(before: Graph, after: Graph, context: PassContext) -> Graph:
    """`after`, its outputs with the strides that those of `before` have."""
    builder = Builder(context.oracle)
    outputs = list(after.outputs)
    for place, (old, new) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        wanted, found = old.value.spec, new.value.spec
        if old.alias is not None or not isinstance(wanted, TensorSpec) or not isinstance(found, TensorSpec):
            continue
        if wanted.strides != found.strides:
            layout = {"sizes": wanted.sizes, "strides": wanted.strides, "offset": found.offset}
            outputs[place] = replace(new, value=builder.node("as_strided", new.value, **layout))
    if not builder.nodes:
        return after
    return replace(after, nodes=[*after.nodes, *builder.nodes], outputs=tuple(outputs))
