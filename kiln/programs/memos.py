"""Changes of objects that only remember: a table that the first call fills, and later ones read.

    if kind not in self.tables:                     the first call changes an object of the process,
        self.tables[kind] = table_of(kind)          the second one does not, and computes the same

Such a call is captured twice: before and after one eager call. Where the second capture changes nothing and is the same
program, it stands for both. A tensor that was remembered is, in the second, a constant: the same program has the
computation of that constant in its place, which depends on nothing but what the program carries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast, final

import torch

from kiln.capture.interpreter.core import MISSING, Effect
from kiln.capture.interpreter.effects import ContentsEffect
from kiln.capture.interpreter.variables.function import GlobalEffect
from kiln.capture.interpreter.variables.object import AttributeEffect
from kiln.capture.interpreter.variables.sequence import AppendEffect
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import symbols_in
from kiln.graph.ir.text import call_text, graph_text, spec_text
from kiln.graph.prims.table import Kind
from kiln.graph.trace import InputRecord, Trace
from kiln.programs.call.signature import CONSTANTS
from kiln.programs.call.tree import flatten
from kiln.programs.output_mark import OutputMark
from kiln.support.records import dataclass

COUNTED = frozenset({Kind.LIBRARY, Kind.RANDOM, Kind.DRAW, Kind.EFFECT, Kind.NESTED})
"""Kinds of which two equal nodes need not give equal results."""


@final
@dataclass(frozen=True, slots=True)
class ComparedCall:
    """What is compared of a capture: its trace, its result, and the buffers for which it stores others."""

    trace: Trace
    result: object
    stored: Sequence[tuple[torch.Tensor | None, object]]


# What a call changes, and how it is undone.


Content = dict[object, object] | list[object] | set[object]


@final
class Snapshot:
    """A container, or one item of a dict, and what it held."""

    def __init__(self, content: Content, name: str | None = None) -> None:
        self.content, self.name = content, name
        self.before = self.held()

    def held(self) -> list[object]:
        """What is there now, in order."""
        if self.name is not None and isinstance(self.content, dict):
            return [self.content.get(self.name, MISSING)]
        return [*(self.content.items() if isinstance(self.content, dict) else self.content)]

    def is_changed(self) -> bool:
        now = self.held()
        return len(now) != len(self.before) or not all(map(is_same, now, self.before))

    def undo(self) -> None:
        content = self.content
        if isinstance(content, list):
            content[:] = self.before
        elif self.name is None or not isinstance(content, dict):
            content.clear()
            content.update(self.before)  # type: ignore[arg-type]
        elif self.before[0] is MISSING:
            content.pop(self.name, None)
        else:
            content[self.name] = self.before[0]


def is_same(now: object, before: object) -> bool:
    """Whether they are one object, a pair of such, or equal constants."""
    if type(now) is tuple and type(before) is tuple:
        return len(now) == len(before) and all(map(is_same, now, before))
    return now is before or (type(now) is type(before) and type(now) in CONSTANTS and now == before)


def snapshot_of(effect: Effect) -> Snapshot | None:
    """What it changes; None if that is of another kind."""
    if isinstance(effect, ContentsEffect | AppendEffect):
        content = effect.value.real()
        return Snapshot(cast(Content, content)) if type(content) in (dict, list, set) else None
    if isinstance(effect, AttributeEffect):
        attributes = getattr(effect.value.real(), "__dict__", None)
        return Snapshot(cast(Content, attributes), effect.name) if type(attributes) is dict else None
    if isinstance(effect, GlobalEffect):
        return Snapshot(cast(Content, effect.namespace.dictionary), effect.name)
    return None


@final
class Changes:
    """What a call changes, and the tensors that it writes; made before the call."""

    def __init__(self, snapshots: Sequence[Snapshot], tensors: Sequence[torch.Tensor]) -> None:
        self.snapshots, self.tensors = snapshots, tensors
        self.before = [tensor.detach().clone() for tensor in tensors]

    def are_none(self) -> bool:
        """Whether all is as it was, but for the tensors."""
        return not any([snapshot.is_changed() for snapshot in self.snapshots])

    def undo(self) -> None:
        for snapshot in self.snapshots:
            snapshot.undo()
        with torch.no_grad():
            for tensor, contents in zip(self.tensors, self.before, strict=True):
                tensor.copy_(contents)


@contextmanager
def undone(effects: Sequence[Effect], tensors: Sequence[torch.Tensor]) -> Iterator[Changes | None]:
    """What the effects and writes to `tensors` change is afterwards what it was; None where that cannot be done."""
    snapshots = [snapshot_of(effect) for effect in effects]
    known = [snapshot for snapshot in snapshots if snapshot is not None]
    if len(known) < len(snapshots):
        yield None
        return
    changes = Changes(known, tensors)
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    try:
        with torch.random.fork_rng(devices):
            yield changes
    finally:
        changes.undo()


# Whether two captures are the same program.


def is_same_program(first: ComparedCall, second: ComparedCall, given: frozenset[int]) -> bool:
    """Whether `second`, with what the call of `first` remembered, computes what `first` does for all arguments
    (`given`, by `id`)."""
    names = {id(record.real): f"input {id(record.real)}" for record in first.trace.inputs if record.real is not None}
    before = Digests(first.trace, names)
    for record in second.trace.used_inputs:
        if record.real is None:
            return False
        if id(record.real) not in names:
            node = remembered(first.trace, record, given)
            if node is None:
                return False
            names[id(record.real)] = before.of[node]
    return before.of_call(first) == Digests(second.trace, names).of_call(second)


@final
class Digests:
    """A digest of each value of a graph: equal ones are computed alike from the same inputs."""

    def __init__(self, trace: Trace, names: Mapping[int, str]) -> None:
        self.names, self.of = names, dict[Node, str]()
        self.effects: list[str] = []
        seen: dict[str, int] = {}
        for record in trace.inputs:
            self.of[record.node] = names.get(id(record.real), record.name)
        self.records = {id(record.fake): record for record in trace.inputs}
        for node in trace.graph.nodes:
            nested: list[Graph] = []
            text = f"{spec_text(node.spec)} = {call_text(node, self.of, nested)}"
            text += "".join([graph_text(graph, origins=False) for graph in nested])
            if node.op.kind in COUNTED:
                seen[text] = seen.get(text, -1) + 1
                text += f" #{seen[text]}"
            self.of[node] = hashlib.sha256(text.encode()).hexdigest()
            if node.op.kind is Kind.EFFECT:
                self.effects.append(self.of[node])

    def of_call(self, captured: ComparedCall) -> object:
        """What a call does: its results, what it writes and stores, and its effects."""
        graph = captured.trace.graph
        tree, leaves = flatten(captured.result)
        results = [self.of_leaf(leaf, graph) for leaf in leaves]
        stored = [(id(old), self.of_leaf(new, graph)) for old, new in captured.stored]
        writes = [(self.of[write.target], self.of[write.value], write.versions) for write in graph.writes]
        return tree, results, stored, writes, self.effects

    def of_leaf(self, leaf: object, graph: Graph) -> object:
        if isinstance(leaf, OutputMark):
            return self.of[graph.outputs[leaf.number].value]
        if id(leaf) in self.records:
            return self.of[self.records[id(leaf)].node]
        if isinstance(leaf, torch.Tensor):
            return self.names.get(id(leaf), f"tensor {id(leaf)}")
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            return str(leaf.node.value)
        return type(leaf), repr(leaf)


def remembered(trace: Trace, record: InputRecord, given: frozenset[int]) -> Node | None:
    """The result of the graph that is the tensor of `record`, if nothing decides it that may change."""
    real, graph = record.real, trace.graph
    assert real is not None
    inputs = {each.node: each for each in trace.inputs}
    fixed = fixed_values(graph, inputs, given)
    for output in graph.outputs:
        node = output.value
        if node not in fixed or (node.tensor.dtype, node.tensor.sizes) != (real.dtype, tuple(real.shape)):
            continue
        used = [each for each in graph.inputs if each in fixed]
        nodes = [each for each in graph.nodes if each in fixed]
        part = Graph(tuple(used), nodes, (Output(node),))
        value = interpret(part, [inputs[each].real for each in used], {}, trace.constants).outputs[0]
        if isinstance(value, torch.Tensor) and torch.allclose(value, real, equal_nan=True):
            return node
    return None


def fixed_values(graph: Graph, inputs: Mapping[Node, InputRecord], given: frozenset[int]) -> set[Node]:
    """The values that depend on nothing but tensors that the program carries and does not change."""
    written = {write.target for write in graph.writes}
    fixed: set[Node] = set()
    for node in graph.inputs:
        real = inputs[node].real
        if real is not None and id(real) not in given and node not in written:
            fixed.add(node)
    for node in graph.nodes:
        kind = node.op.kind
        is_open = kind in (Kind.RANDOM, Kind.EFFECT, Kind.NESTED) or symbols_in((node.spec, *node.attrs.values()))
        if not is_open and all([value in fixed for value in node.inputs]):
            fixed.add(node)
    return fixed
