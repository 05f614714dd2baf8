"""Gives parts of a region's graphs to another compiler.

    graph --offload--> graph with calls of the parts --passes--> ... --> Kiln's own plan

A part sees what was recorded, without the passes that suit Kiln's own kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.rewrite import with_nested
from kiln.graph.offload.calls import with_calls
from kiln.graph.offload.part import Direction, GraphBackend, GraphPart
from kiln.graph.offload.split import Split, split
from kiln.graph.passes import OFFLOAD_PASSES, run_passes
from kiln.runtime.offloaded import OffloadedRun
from kiln.support.dump import Dump
from kiln.support.events import EventSink
from kiln.support.records import dataclass
from kiln.symbolic import ShapeEnv, Symbol

Executable = Callable[..., tuple[object, ...]]


@final
@dataclass(frozen=True, slots=True)
class Offload:
    """What gets the parts of one region. `runs`: those that are compiled, which the region keeps alive."""

    backend: GraphBackend
    constants: Mapping[str, torch.Tensor]
    direction: Direction = ""
    runs: list[OffloadedRun] = field(default_factory=list)

    def rewritten(self, graph: Graph, env: ShapeEnv | None, events: EventSink, dump: Dump) -> Graph:
        """The graph with calls of the parts that the backend takes. Raises KilnError."""
        graph = with_nested(graph, lambda nested: self.rewritten(nested, env, events, dump))
        graph = run_passes(graph, events, env=env, passes=OFFLOAD_PASSES)
        found = split(graph, self.backend)
        dump.write(f"{self.direction or 'graph'}_split", found.text)

        def compile_part(part: Graph, symbols: tuple[Symbol, ...]) -> int:
            hints = {symbol: env.hint(symbol) for symbol in symbols if env is not None and env.has_hint(symbol)}
            made = GraphPart(part, symbols, hints, self.constants, self.direction)
            self.runs.append(OffloadedRun(self.backend.compile(made)))
            return self.runs[-1].number

        events.emit("note", text=summary(found))
        return with_calls(found, compile_part)

    def kept_by(self, run: Executable) -> Executable:
        """`run`, which keeps its parts alive."""
        return partial(run_region, self, run)


def run_region(offload: Offload, run: Executable, *inputs: object) -> tuple[object, ...]:
    return run(*inputs)


def summary(found: Split) -> str:
    """For the report: `onnxrt: 2 parts, 160 of 163 nodes; not cumsum (no ONNX form)`."""
    text = f"{found.backend}: {len(found.parts)} parts, {found.count()} of {len(found.graph.nodes)} nodes"
    reasons = Counter(found.reasons().values())
    return text + "".join([f"; not {reason}" for reason, _ in reasons.most_common(3)])
