"""Compiled backwards of eager code, by the structure of autograd's graph.

    Programs.make(key, structure, roots)    a `CutGraph`: the segments of autograd's graph, and their plans
    Prepare(...)(tangents, needed, ...)     what a segment's node asks in one backward: a plan, and its inputs

A plan belongs to the tangents that arrive and the gradients that are needed. That for all of them is compiled before
the engine starts; one for others when they are met, while the engine runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.text import graph_text
from kiln.graph.trace import Recorder
from kiln.pipeline.captured import eager_kernels
from kiln.pipeline.compile_key import compile_key
from kiln.pipeline.compiled_plan import compile_plan
from kiln.pipeline.context import CompileContext
from kiln.pipeline.eager_backward.record import NodeRefused, Recorded, record, run_nodes
from kiln.pipeline.eager_backward.segments import NodeInput, Segment, cut
from kiln.pipeline.eager_backward.sizes import SymbolicGraph, with_symbols
from kiln.pipeline.eager_backward.structure import Structure
from kiln.pipeline.modes import outside_engine
from kiln.pipeline.stages import graph_to_plan
from kiln.plan.arena import with_donations
from kiln.runtime.cache.store import content_key
from kiln.runtime.executor import Executable
from kiln.runtime.loader import load_plan
from kiln.runtime.variant import UNREADABLE
from kiln.support.gc_pause import GC_PAUSE
from kiln.support.records import dataclass
from kiln.symbolic import ShapeEnv
from kiln.symbolic.reference import prove

Mask = tuple[bool, ...]
Run = Callable[..., Sequence[object]]


@final
@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """`inputs` as in `Recorded`; the plan returns a gradient or None for each target."""

    run: Run
    inputs: tuple[int, ...]


@final
@dataclass(slots=True)
class CutGraph:
    """`plans`: for each segment, by (tangents that arrive, gradients that are needed)."""

    segments: list[Segment]
    eager: tuple[str, ...]
    plans: list[dict[tuple[Mask, Mask], SegmentPlan]] = field(default_factory=list)


MOST_KNOWN = 256
"""Sets of sizes whose programs are kept; a recording makes one again."""


@final
@dataclass(slots=True)
class SegmentForms:
    """Compiled forms of a segment: with the numbers of each recording, then with symbols for those that changed."""

    static: list[Graph] = field(default_factory=list)
    symbolic: list[tuple[SymbolicGraph, Executable]] = field(default_factory=list)

    def find(self, programs: Programs, recorded: Recorded) -> Run:
        """What computes the recorded graph, compiled now if there is nothing yet."""
        graph = recorded.trace.graph
        for form, executable in self.symbolic:
            values = form.values_in(graph)
            if values is not None:
                return with_constants(executable, values)
        for earlier in self.static if programs.context.options.dynamic != "never" else ():
            made = with_symbols(earlier, graph)
            values = made.values_in(graph) if made is not None else None
            if made is not None and values is not None:
                executable = programs.load_or_compile(made.graph, recorded)
                self.symbolic.append((made, executable))
                return with_constants(executable, values)
        programs.compiles.append(graph.name)
        self.static.append(graph)
        return programs.load_or_compile(graph, recorded)


def with_constants(executable: Executable, values: Sequence[torch.Tensor]) -> Run:
    return executable if not values else lambda *inputs: executable(*inputs, *values)


@final
@dataclass(frozen=True, slots=True)
class Programs:
    """All compiled backwards of a session, the oldest first. `refused`: nodes that could not be recorded, by key and
    number. `families`: segments that differ in numbers only."""

    context: CompileContext
    known: dict[Hashable, CutGraph] = field(default_factory=dict)
    families: dict[Hashable, SegmentForms] = field(default_factory=dict)
    refused: dict[Hashable, dict[int, str]] = field(default_factory=dict)
    compiles: list[str] = field(default_factory=list)
    """One entry for each form with numbers."""

    def make(self, key: Hashable, structure: Structure, roots: Sequence[NodeInput]) -> CutGraph:
        """Compile a backward; nodes that cannot be recorded stay eager."""
        refused = self.refused.setdefault(key, {})
        with GC_PAUSE():
            while True:
                eager = tuple([refused.get(number, reason) for number, reason in enumerate(structure.eager)])
                program = CutGraph(cut(structure.nodes, eager, roots), eager)
                try:
                    for segment in program.segments:
                        masks = (True,) * len(segment.slots), (True,) * len(segment.targets)
                        program.plans.append({masks: self.compile(structure, segment, *masks)})
                except NodeRefused as problem:
                    refused[problem.number] = problem.reason
                    continue
                return self._remember(key, program)

    def keep_eager(self, key: Hashable, structure: Structure, reason: str) -> CutGraph:
        """A backward that the engine runs as it is."""
        return self._remember(key, CutGraph([], (reason,) * len(structure.nodes)))

    def _remember(self, key: Hashable, program: CutGraph) -> CutGraph:
        while len(self.known) >= MOST_KNOWN:
            oldest = next(iter(self.known))
            del self.known[oldest]
            self.refused.pop(oldest, None)
        self.known[key] = program
        return program

    def compile(self, structure: Structure, segment: Segment, given: Mask, needed: Mask) -> SegmentPlan:
        """Raises NodeRefused."""
        context = self.context
        kernels = eager_kernels(context.options)
        with context.events.stage("trace"):
            recorder = Recorder(env=ShapeEnv(prover=prove), events=context.events, kernels=kernels)
            recorded = record(recorder, structure, segment, given, needed)
        types = tuple([type(structure.nodes[number]) for number in segment.members])
        kind = types, segment, given, needed, recorded.inputs
        executable = self.families.setdefault(kind, SegmentForms()).find(self, recorded)
        numbers = iter(range(sum(recorded.present)))
        order = tuple([next(numbers) if there else None for there in recorded.present])
        return SegmentPlan(in_places(executable, order), recorded.inputs)

    def load_or_compile(self, graph: Graph, recorded: Recorded) -> Executable:
        """`graph`: the recorded one, or its form with symbols."""
        trace, context = recorded.trace, self.context
        key = ""
        if context.options.cache:
            settings = compile_key("eager backward", context.options, context.host).digest()
            saved = repr([number < 0 for number in recorded.inputs])
            key = content_key(settings, graph_text(graph), saved, *sorted(trace.constants))
            stored = context.store.get("backward", key)
            if stored is not None:
                with suppress(*UNREADABLE):  # damaged, or written by another version
                    return load_plan(stored, context.graphs, standalone=False)
        context.events.emit("region")
        context.dump.write("graph", lambda: graph_text(graph))
        plan = graph_to_plan(graph, replace(context, env=None), "backward")
        plan = with_donations(plan, [slot for slot, number in enumerate(recorded.inputs) if number < 0])
        compiled = compile_plan(plan, trace.constants, context, range(len(plan.inputs)))
        if key:
            context.store.put("backward", key, compiled.bundle())
        return compiled.executor(context.graphs, standalone=False)


def in_places(executable: Run, order: Sequence[int | None]) -> Run:
    """`executable`, with None for gradients that do not exist."""
    if order == tuple(range(len(order))):
        return executable
    return lambda *inputs: pick(executable(*inputs), order)


def pick(results: Sequence[object], order: Sequence[int | None]) -> list[object]:
    return [None if number is None else results[number] for number in order]


@final
class Prepare:
    """What the node of a segment asks for when gradients arrive: a plan and its inputs."""

    def __init__(self, programs: Programs, program: CutGraph, number: int, structure: Structure) -> None:
        self.programs = programs
        self.plans = program.plans[number]
        self.segment = program.segments[number]
        self.structure = structure

    def __call__(
        self, tangents: tuple[torch.Tensor | None, ...], needed: Mask, releases: int
    ) -> tuple[Run, tuple[object, ...]]:
        given = tuple([tangent is not None for tangent in tangents])
        plan = self.plans.get((given, needed))
        if plan is None:
            plan = self.compile(given, needed)
            if plan is None:
                return self.by_nodes(tangents, needed), ()
        tensors = self.structure.tensors
        return plan.run, tuple([tensors[~number] if number < 0 else dense(tangents, number) for number in plan.inputs])

    def compile(self, given: Mask, needed: Mask) -> SegmentPlan | None:
        """None where a node cannot be recorded for these."""
        try:
            with self.programs.context.counting(), self.programs.context.events.stage("compile"):
                found = outside_engine(lambda: self.programs.compile(self.structure, self.segment, given, needed))
        except NodeRefused:
            return None
        self.plans[given, needed] = found
        return found

    def by_nodes(self, tangents: Sequence[torch.Tensor | None], needed: Mask) -> Run:
        nodes = self.structure.nodes
        found = outside_engine(lambda: run_nodes(nodes, self.segment, tangents, needed, lambda f, args: f(*args)))
        return lambda: found


def dense(tangents: Sequence[torch.Tensor | None], number: int) -> object:
    """A tangent, by its number; one that is sparse becomes dense."""
    tangent = tangents[number]
    assert tangent is not None
    return number if tangent.layout is torch.strided else tangent.to_dense()
