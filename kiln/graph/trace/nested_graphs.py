"""Nested graphs: torch calls of a branch, or of the body of a loop, recorded apart from what surrounds them.

    with nested(recorder, [x]) as made:         the nodes recorded within leave the recording
        ...
    made.graph("true", [y], outside)            graph(%0: f32[4] "x", %1: f32[4] "outside_0"): ...

What a nested graph reads from outside becomes an input; `Nested.outside` has these values. Constants are copied.
Outputs are fresh memory, so that no stage has to know what they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Protocol, final

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import nested_graphs, without_dead_code
from kiln.graph.ops import Emit
from kiln.graph.prims.meta import preserved, same_strides
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Int, ShapeEnv, Symbol
from kiln.tensor.spec import TensorSpec


class NotNested(Exception):
    """Why calls cannot be a nested graph: the program runs as plain Python instead."""


class Surroundings(Protocol):
    """What nested graphs need of the recorder."""

    @property
    def env(self) -> ShapeEnv: ...
    @property
    def emit(self) -> Emit: ...
    @property
    def nodes(self) -> list[Node]: ...


READ_ON_HOST = frozenset({"local_scalar"})
"""Ops whose results are numbers, which do not leave a nested graph."""
INPUT, CONSTANT = PRIMS["input"], PRIMS["constant"]


def input_node(number: int, name: str, spec: TensorSpec) -> Node:
    return Node(INPUT, (), {"index": number, "name": name}, spec)


@final
@dataclass
class Nested:
    """Nodes that were recorded for a nested graph, and the outer values that they read, with their inputs."""

    recording: Surroundings
    inputs: tuple[Node, ...]
    first: int
    """The number of its first node among those of the recording."""
    nodes: list[Node] = field(default_factory=list)
    outside: dict[Node, Node] = field(default_factory=dict)
    read_as: dict[Node, Node] = field(default_factory=dict)
    """What nodes and outputs read in place of a value that was recorded."""
    taken: set[Node] = field(default_factory=set)
    """The values whose memory is that of an output."""
    sizes: set[Symbol] = field(default_factory=set)
    """The sizes that depend on data and that it may read; none leaves it."""

    def graph(self, name: str, outputs: Iterable[Node], outside: Iterable[Node]) -> Graph:
        """The graph of its inputs, then those for the values `outside` of this nested graph and its siblings."""
        extra = [self.outside.get(value) or outside_input(value, number) for number, value in enumerate(outside)]
        results = tuple([Output(self.read(value)) for value in outputs])
        return without_dead_code(Graph((*self.inputs, *extra), self.nodes, results, (), name))[0]

    def read(self, value: Node) -> Node:
        """`value` as a node of the nested graph."""
        found = self.read_as.get(value)
        if found is not None:
            return found
        if value.op is CONSTANT:
            found = Node(value.op, (), value.attrs, value.spec, value.origin)
            self.nodes.append(found)
        elif isinstance(value.spec, TensorSpec):
            found = self.outside[value] = outside_input(value, len(self.outside))
        else:
            raise NotNested("it reads a number that the region has computed")
        self.read_as[value] = found
        return found

    def fresh(self, values: Iterable[Node], strides: Sequence[tuple[Int, ...]] | None = None) -> list[Node]:
        """Outputs: each value in memory that nothing else has. `strides`: theirs, also of dimensions of size 1;
        by default dense, in the same order.

        Call it while the nested graph is recorded.
        """
        emit, made = self.recording.emit, list[Node]()
        free = {*self.nodes, *self.recording.nodes[self.first :]} - self.taken
        for number, value in enumerate(values):
            spec, base = value.tensor, base_of(value)
            wanted = preserved(self.recording.env, spec).strides if strides is None else strides[number]
            own = base in free and base.op is not CONSTANT and base.op.name != "constant_tensor"
            fits = same_strides(spec.strides, wanted, spec.sizes) if strides is None else spec.strides == wanted
            if not own or spec.offset != 0 or not fits:
                value = base = emit.node("clone", value, strides=wanted)
            free.discard(base)
            self.taken.add(base)
            made.append(value)
        return made


def outside_input(value: Node, number: int) -> Node:
    return input_node(number, f"outside_{number}", value.tensor)


@contextmanager
def nested(recording: Surroundings, inputs: Sequence[Node]) -> Iterator[Nested]:
    """Record the nodes of a nested graph, which `Nested` has at the end."""
    made = Nested(recording, tuple(inputs), 0, read_as={node: node for node in inputs})
    with further(made):
        yield made


@contextmanager
def further(made: Nested) -> Iterator[None]:
    """Record more nodes of a nested graph."""
    recording = made.recording
    first, unbacked = len(recording.nodes), len(recording.env.unbacked)
    made.first = first
    yield
    found = recording.nodes[first:]
    del recording.nodes[first:]
    reads = [node.spec.value for node in found if node.op.name in READ_ON_HOST]  # type: ignore[union-attr]
    if len(recording.env.unbacked) != unbacked or not made.sizes.issuperset(reads):
        raise NotNested("a size or a number in it depends on data")
    for node in found:
        if node.op is CONSTANT or node.op.name == "constant_tensor":
            recording.nodes.append(node)  # calls outside may share it
            continue
        node.inputs = tuple([made.read(value) for value in node.inputs])
        made.nodes.append(node)
        made.read_as[node] = node


def draws_random(nodes: Iterable[Node]) -> bool:
    """Whether a second run would draw other numbers; calls with unknown effects may."""
    return any(
        node.op.kind is Kind.RANDOM
        or node.op.name == "opaque"
        or any(draws_random(graph.nodes) for graph in nested_graphs(node))
        for node in nodes
    )
