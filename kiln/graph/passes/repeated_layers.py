"""Equal layers of a graph are found, and most are left out, so that later stages see only a few of them.

    %20 = f(%19, w3)                                       prefix, L0, L1, L2, ..., L46, L47, suffix
    %21 = g(%20, b3)          layers of two nodes    =>    prefix, L0, L1,          L46, L47, suffix
    %22 = f(%21, w4)
    %23 = g(%22, b4)

Nodes of two layers are equal if op, attributes, spec and torch call are; operands may be shared (defined before the
first layer), moved or own inputs of the graph (`support/repetition.py`). What the plan of the short graph does for L1
and L46 holds for the layers left out; `pipeline/repeated_layers.py` checks that and puts them back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import final

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import with_inputs
from kiln.graph.passes.cse import exact
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.support.repetition import OperandRelation, longest_run, usual_distance

HEAD, TAIL = 2, 2
"""Layers kept at either end. The outermost ones have other neighbours than the rest; the second ones are typical."""
LEAST_COUNT = HEAD + TAIL + 2
CANDIDATES = 8
"""How many periods are tried."""


@final
@dataclass(frozen=True, slots=True)
class Layers:
    """`count` equal layers of `period` nodes each, the first from node `start` on.

    `own[layer]`: the inputs of the graph that only this layer reads, in the order of its nodes. `outputs[layer]`: the
    outputs of the graph that it computes, as (number of the node in the layer, number of the output).
    """

    start: int
    period: int
    count: int
    own: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def left_out(self) -> int:
        return self.count - HEAD - TAIL

    def kept(self) -> list[int]:
        """The layers in the short graph."""
        return [*range(HEAD), *range(self.count - TAIL, self.count)]


@final
@dataclass(frozen=True, slots=True)
class ShortGraph:
    """The graph without the layers in the middle; `inputs` and `outputs` are the numbers of its own in the full one."""

    graph: Graph
    layers: Layers
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def short_graph(graph: Graph) -> ShortGraph | None:
    """`graph` with four of its equal layers; None if it has too few."""
    layers = find_layers(graph)
    return None if layers is None else _shortened(graph, layers)


def find_layers(graph: Graph) -> Layers | None:
    """The equal layers with the most nodes to leave out."""
    kinds = _kinds(graph.nodes)
    best: Layers | None = None
    for period in _periods(kinds):
        run = longest_run(0, len(kinds), period, lambda _, item, period=period: kinds[item] == kinds[item - period])  # type: ignore[misc]
        found = _LayerFinder(graph, period, run).layers()
        if found is not None and (best is None or found.left_out * found.period > best.left_out * best.period):
            best = found
    return best


def _kinds(nodes: Sequence[Node]) -> list[int]:
    """A number per node, equal for nodes that do the same to their inputs and unique for nodes with effects."""
    numbers: dict[Hashable, int] = {}
    found = []
    for node in nodes:
        key: Hashable = id(node)
        if node.op.pure and node.op.kind is not Kind.NESTED:
            origin = node.origin
            call = None if origin is None else (origin.call, origin.backward)
            key = (node.op.name, node.spec, exact(tuple(node.attrs.values())), call, len(node.inputs))
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def _periods(kinds: Sequence[int]) -> list[int]:
    """Candidates: the usual distance between nodes of a kind, rare kinds first."""
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for number, kind in enumerate(kinds):
        numbers[kind].append(number)
    frequent = sorted((found for found in numbers.values() if len(found) >= LEAST_COUNT), key=len)[:CANDIDATES]
    periods = [usual_distance(after - before for before, after in pairwise(found)) for found in frequent]
    return list(dict.fromkeys(periods))


@final
class _LayerFinder:
    """Cuts a run of nodes whose kinds repeat into layers."""

    def __init__(self, graph: Graph, period: int, run: range) -> None:
        self.graph, self.period = graph, period
        self.number = {node: number for number, node in enumerate(graph.nodes)}
        self.run = self._with_equal_operands(run)
        self.start, self.count = self.run.start, len(self.run) // period

    def layers(self) -> Layers | None:
        if self.count < LEAST_COUNT or not self._reads_one_layer_back() or not self._suffix_reads_last_layer():
            return None
        own = [self._own(layer) for layer in range(self.count)]
        if any(order != own[0][1] for _, order in own) or not self._read_by_owner_only([nodes for nodes, _ in own]):
            return None
        outputs = self._outputs()
        if outputs is None:
            return None
        number = {node: number for number, node in enumerate(self.graph.inputs)}
        inputs = tuple([tuple([number[node] for node in nodes]) for nodes, _ in own])
        return Layers(self.start, self.period, self.count, inputs, outputs)

    def layer_of(self, node: Node) -> int | None:
        """The layer that computes the node."""
        number = self.number.get(node, -1)
        inside = self.start <= number < self.start + self.count * self.period
        return (number - self.start) // self.period if inside else None

    def _with_equal_operands(self, run: range) -> range:
        """The longest part of `run` in which the relations of operands repeat too."""
        nodes, period = self.graph.nodes, self.period
        relations: dict[int, tuple[OperandRelation, ...]] = {}

        def repeats(begin: int, item: int) -> bool:
            found = self._relations(nodes[item], nodes[item - period])
            if found is None:
                return False
            relations[item] = found
            return item < begin + 2 * period or relations.get(item - period) == found

        return longest_run(run.start, run.stop, period, repeats)

    def _relations(self, node: Node, before: Node) -> tuple[OperandRelation, ...] | None:
        """How each operand differs from that of the same node one layer before; None: in no allowed way."""
        found: list[OperandRelation] = []
        for new, old in zip(node.inputs, before.inputs, strict=True):
            new_number, old_number = self.number.get(new), self.number.get(old)
            if new is old:
                found.append("shared")
            elif new_number is not None and old_number is not None and new_number - old_number == self.period:
                found.append("moved")
            elif new_number is None and old_number is None:
                found.append("own")
            else:
                return None
        return tuple(found)

    def _reads_one_layer_back(self) -> bool:
        """Nodes read their own layer, the one before, and what is defined before all layers."""
        for layer in range(1, self.count):
            first = self.start + layer * self.period
            for node in self.graph.nodes[first : first + self.period]:
                numbers = [self.number.get(operand, -1) for operand in node.inputs]
                if any(self.start <= number < first - self.period for number in numbers):
                    return False
        return True

    def _suffix_reads_last_layer(self) -> bool:
        """Nodes behind the layers read only the last one, and no write reads any."""
        suffix = self.graph.nodes[self.start + self.count * self.period :]
        read = {self.layer_of(operand) for node in suffix for operand in node.inputs}
        written = {self.layer_of(write.value) for write in self.graph.writes}
        return read <= {None, self.count - 1} and written <= {None}

    def _own(self, layer: int) -> tuple[list[Node], list[int]]:
        """The inputs of the graph that only this layer reads, and in which order it reads them."""
        numbers: dict[Node, int] = {}
        order = []
        neighbour = layer + 1 if layer + 1 < self.count else layer - 1
        for item in range(self.start + layer * self.period, self.start + (layer + 1) * self.period):
            other = self.graph.nodes[item + (neighbour - layer) * self.period]
            for operand, there in zip(self.graph.nodes[item].inputs, other.inputs, strict=True):
                if operand is not there and operand not in self.number and there not in self.number:
                    order.append(numbers.setdefault(operand, len(numbers)))
        return list(numbers), order

    def _read_by_owner_only(self, own: list[list[Node]]) -> bool:
        owner = {node: layer for layer, nodes in enumerate(own) for node in nodes}
        if len(owner) != sum(map(len, own)):
            return False
        outside = [*self.graph.roots(), *(write.target for write in self.graph.writes)]
        for node in self.graph.nodes:
            layer = self.layer_of(node)
            if layer is None:
                outside.extend(node.inputs)
            elif any(owner.get(operand, layer) != layer for operand in node.inputs):
                return False
        return not any(node in owner for node in outside)

    def _outputs(self) -> tuple[tuple[tuple[int, int], ...], ...] | None:
        """The outputs of each layer in the order of its nodes; None if layers in the middle differ."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for number, output in enumerate(self.graph.outputs):
            layer = self.layer_of(output.value)
            if layer is None:
                continue
            if output.alias is not None:
                return None
            found[layer].append(((self.number[output.value] - self.start) % self.period, number))
        for outputs in found:
            outputs.sort()
        nodes = [[node for node, _ in outputs] for outputs in found]
        if any(inner != nodes[1] for inner in nodes[1:-1]):
            return None
        return tuple(map(tuple, found))


def _shortened(graph: Graph, layers: Layers) -> ShortGraph | None:
    first = layers.start + HEAD * layers.period
    after = layers.start + (layers.count - TAIL) * layers.period
    middle = range(HEAD, layers.count - TAIL)
    gone_inputs = {number for layer in middle for number in layers.own[layer]}
    gone_outputs = {number for layer in middle for _, number in layers.outputs[layer]}
    inputs = [number for number in range(len(graph.inputs)) if number not in gone_inputs]
    outputs = [number for number in range(len(graph.outputs)) if number not in gone_outputs]
    # The layer behind the gap reads the one before it.
    ends = zip(graph.nodes[after - layers.period : after], graph.nodes[first - layers.period : first], strict=True)
    successor = dict(ends)
    nodes = graph.nodes[:first]
    for old in graph.nodes[after:]:
        successor[old] = with_inputs(old, tuple([successor.get(operand, operand) for operand in old.inputs]))
        nodes.append(successor[old])
    results = list(_short_outputs(graph, inputs, outputs, successor))
    if len(results) != len(outputs):
        return None
    writes = tuple([replace(write, value=successor.get(write.value, write.value)) for write in graph.writes])
    kept = tuple([graph.inputs[number] for number in inputs])
    short = Graph(kept, nodes, tuple(results), writes, graph.name)
    return ShortGraph(short, layers, tuple(inputs), tuple(outputs))


def _short_outputs(
    graph: Graph, inputs: list[int], outputs: list[int], successor: dict[Node, Node]
) -> Iterator[Output]:
    """The outputs that stay, without views of those that go."""
    numbers = {
        "input": {old: new for new, old in enumerate(inputs)},
        "output": {old: new for new, old in enumerate(outputs)},
    }
    for number in outputs:
        output = graph.outputs[number]
        alias = output.alias
        if alias is not None:
            base = numbers[alias.of].get(alias.index)
            if base is None:
                continue
            alias = replace(alias, index=base)
        yield replace(output, value=successor.get(output.value, output.value), alias=alias)
