"""Passes over graphs: what a pass is, the runner, and the constraints on their order.

    graph = run_passes(graph, events)                      the passes of `pipeline.py`, each verified and timed
    check_order(PASSES, before("simplify", "cse", because="..."))

A pass never prints, and never changes a graph in place. It returns a graph and how many changes it made. It may take
one value for another that differs in strides of dimensions of size 1, where no element is elsewhere; of what leaves
the graph even those are eager's, so the runner puts a view behind such an output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.ir.verify import RULES, STRUCTURE, verify
from kiln.support.events import EventSink
from kiln.symbolic import ShapeEnv
from kiln.tensor.spec import TensorSpec

Checks = Literal["none", "structure", "full"]


@final
@dataclass(frozen=True, slots=True)
class PassContext:
    """What a pass is handed."""

    oracle: GuardFreeOracle


class GraphPass(Protocol):
    """A frozen dataclass whose fields are its options."""

    @property
    def name(self) -> str: ...

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]: ...


def apply_passes(
    passes: Sequence[GraphPass],
    graph: Graph,
    events: EventSink,
    *,
    env: ShapeEnv | None = None,
    checks: Checks = "structure",
) -> Graph:
    """Run `passes` in order. Each reports an event `pass` with the number of changes and of nodes after it."""
    context = PassContext(GuardFreeOracle(env))
    for one in passes:
        with events.stage(one.name):
            before = graph
            graph, changes = one.run(graph, context)
            graph = with_strides_of(before, graph, context)
            events.emit("pass", name=one.name, changes=changes, nodes=len(graph.nodes))
        if changes and checks != "none":
            verify(graph, one.name, env, RULES if checks == "full" else STRUCTURE)
    return graph


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


# Order.


@final
@dataclass(frozen=True, slots=True)
class Before:
    """Every pass called `first` stands before every pass called `second`."""

    first: str
    second: str
    because: str


def before(first: str, second: str, *, because: str) -> Before:
    return Before(first, second, because)


def check_order(passes: Sequence[GraphPass], *constraints: Before) -> None:
    """Raise ValueError for the first constraint that `passes` breaks, or that names no pass."""
    names = [one.name for one in passes]
    for rule in constraints:
        for name in (rule.first, rule.second):
            if name not in names:
                raise ValueError(f"no pass is called {name!r}")
        last = max(place for place, name in enumerate(names) if name == rule.first)
        if last > names.index(rule.second):
            raise ValueError(f"{rule.first!r} must stand before {rule.second!r}: {rule.because}")
