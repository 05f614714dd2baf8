"""What passes over graphs share: their context, and the strides of outputs (`kiln/support/passes.py` has the runner).

    KeepsStrides(Cse()).run(graph, context)         Cse, then the strides of the outputs as before

A pass may replace a value by another with different strides in dimensions of size 1, which do not matter. Outputs of
the graph must have eager's strides even there, so they are restored by a view.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.support.passes import Pass
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class PassContext:
    """What passes may know besides the graph."""

    oracle: GuardFreeOracle
    without: Collection[str] = ()
    """Rewrite rules that are switched off."""


GraphPass = Pass[Graph, PassContext]


@final
@dataclass(frozen=True, slots=True)
class KeepsStrides:
    """A pass that leaves the strides of outputs unchanged."""

    inner: GraphPass

    @property
    def name(self) -> str:
        return self.inner.name

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        changed, changes = self.inner.run(graph, context)
        return with_strides_of(graph, changed, context), changes


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
