"""Equal blocks of a graph: found, and most of them left out, so that later stages see a few of them only.

    %20 = f(%19, w3)                                       prefix, B0, B1, B2, ..., B46, B47, suffix
    %21 = g(%20, b3)          blocks of two nodes    =>    prefix, B0, B1,          B46, B47, suffix
    %22 = f(%21, w4)
    %23 = g(%22, b4)

Two blocks are equal when their nodes are, one by one: the same op, attributes, spec and torch call, and inputs that
are the same values from before the first block, or stand one block further, or are inputs of the graph that no other
block reads (weights). What a plan of the short graph says of B1 and B46 holds of the blocks left out too;
`pipeline/blocks.py` puts them back and checks that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

from kiln.graph.ir.graph import Graph, Output, Write
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import with_inputs
from kiln.graph.passes.cse import exact
from kiln.graph.prims.table import Kind

HEAD, TAIL = 2, 2
"""Blocks that stay at either end. The first and the last have other neighbours than the rest: one more of each shows
what all the others are like."""
LEAST_LEFT_OUT = 2
CANDIDATES = 8
"""Lengths of blocks that are tried."""
SHARED, MOVED, OWN = "shared", "moved", "own"
"""How an input of a node differs from that of the same node one block before."""


@final
@dataclass(frozen=True, slots=True)
class Blocks:
    """`count` equal blocks of `length` nodes each, the first from place `start` on.

    `own[block]`: the inputs of the graph that only this block reads, in the order of its nodes. `outputs[block]`: the
    outputs of the graph that it computes, each with the place of its node in the block.
    """

    start: int
    length: int
    count: int
    own: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def left_out(self) -> int:
        return self.count - HEAD - TAIL

    def kept(self) -> list[int]:
        """The numbers of the blocks that the short graph has."""
        return [*range(HEAD), *range(self.count - TAIL, self.count)]


@final
@dataclass(frozen=True, slots=True)
class ShortGraph:
    """The graph without the blocks in the middle; `inputs` and `outputs` are the places of its own in the whole one."""

    graph: Graph
    blocks: Blocks
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def short_graph(graph: Graph) -> ShortGraph | None:
    """`graph` with four of its equal blocks; None where there are not enough of them."""
    blocks = find_blocks(graph)
    return None if blocks is None else _shortened(graph, blocks)


def find_blocks(graph: Graph) -> Blocks | None:
    """The equal blocks that hold most nodes."""
    kinds = _kinds(graph.nodes)
    best: Blocks | None = None
    for length in _lengths(kinds):
        found = _Region(graph, length, *_longest_run(kinds, length)).blocks()
        if found is not None and (best is None or found.left_out * found.length > best.left_out * best.length):
            best = found
    return best


def _kinds(nodes: Sequence[Node]) -> list[int]:
    """A number per node, the same for nodes that do the same to their inputs; each node with effects is alone."""
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


def _lengths(kinds: Sequence[int]) -> list[int]:
    """Lengths that blocks may have: the usual distance between nodes of one kind, rare kinds first."""
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, kind in enumerate(kinds):
        places[kind].append(place)
    often = [one for one in places.values() if len(one) >= HEAD + TAIL + LEAST_LEFT_OUT]
    lengths: dict[int, None] = {}
    for one in sorted(often, key=len)[:CANDIDATES]:
        gaps = Counter(after - before for before, after in pairwise(one))
        lengths[gaps.most_common(1)[0][0]] = None
    return list(lengths)


def _longest_run(kinds: Sequence[int], length: int) -> tuple[int, int]:
    """The longest stretch in which every kind comes again after `length` nodes."""
    best, start = (0, 0), 0
    for place in range(length, len(kinds) + 1):
        if place == len(kinds) or kinds[place] != kinds[place - length]:
            best = max(best, (start, place), key=lambda run: run[1] - run[0])
            start = place - length + 1
    return best


@final
class _Region:
    """A stretch of nodes whose kinds repeat, while it is cut into blocks."""

    def __init__(self, graph: Graph, length: int, start: int, end: int) -> None:
        self.graph, self.length, self.end = graph, length, end
        self.place = {node: place for place, node in enumerate(graph.nodes)}
        self.start = self._regular_from(start)
        self.count = max(0, self.end - self.start) // length

    def blocks(self) -> Blocks | None:
        if self.count < HEAD + TAIL + LEAST_LEFT_OUT or not self._reads_one_block_back() or not self._read_behind():
            return None
        own = [self._own(block) for block in range(self.count)]
        if any(one[1] != own[0][1] for one in own) or not self._apart([one[0] for one in own]):
            return None
        outputs = self._outputs()
        if outputs is None:
            return None
        number = {node: place for place, node in enumerate(self.graph.inputs)}
        inputs = tuple([tuple([number[node] for node in one[0]]) for one in own])
        return Blocks(self.start, self.length, self.count, inputs, outputs)

    def block_of(self, node: Node) -> int | None:
        """The block in which the node stands."""
        place = self.place.get(node, -1)
        inside = self.start <= place < self.start + self.count * self.length
        return (place - self.start) // self.length if inside else None

    def _regular_from(self, start: int) -> int:
        """The start of the longest stretch in which inputs repeat too; `end` becomes its end."""
        nodes, length = self.graph.nodes, self.length
        relations: dict[int, tuple[str, ...]] = {}
        best, begin = (start, start), start
        for place in range(start + length, self.end + 1):
            found = self._relation(nodes[place], nodes[place - length]) if place < self.end else None
            if found is not None:
                relations[place] = found
            changed = place - length >= begin + length and relations.get(place - length) != found
            if found is None or changed:
                best = max(best, (begin, place), key=lambda run: run[1] - run[0])
                begin = place - length + 1
        self.end = best[1]
        return best[0]

    def _relation(self, node: Node, before: Node) -> tuple[str, ...] | None:
        """How each input differs from that of the same node one block before; None: as it should not."""
        found = []
        for new, old in zip(node.inputs, before.inputs, strict=True):
            here, there = self.place.get(new), self.place.get(old)
            if new is old:
                found.append(SHARED)
            elif here is not None and there is not None and here - there == self.length:
                found.append(MOVED)
            elif here is None and there is None:
                found.append(OWN)
            else:
                return None
        return tuple(found)

    def _reads_one_block_back(self) -> bool:
        """Nodes read their own block, the one before, and what stands before all blocks."""
        for block in range(1, self.count):
            first = self.start + block * self.length
            for node in self.graph.nodes[first : first + self.length]:
                places = [self.place.get(one, -1) for one in node.inputs]
                if any(self.start <= place < first - self.length for place in places):
                    return False
        return True

    def _read_behind(self) -> bool:
        """Nodes behind the blocks read the last one only, and no write needs any."""
        nodes = self.graph.nodes[self.start + self.count * self.length :]
        read = {self.block_of(one) for node in nodes for one in node.inputs}
        written = {self.block_of(write.value) for write in self.graph.writes}
        return read <= {None, self.count - 1} and written <= {None}

    def _own(self, block: int) -> tuple[list[Node], list[int]]:
        """The inputs of the graph that the block alone reads, and in which order it reads them."""
        numbers: dict[Node, int] = {}
        order = []
        after = block + 1 if block + 1 < self.count else block - 1
        for place in range(self.start + block * self.length, self.start + (block + 1) * self.length):
            other = self.graph.nodes[place + (after - block) * self.length]
            for one, there in zip(self.graph.nodes[place].inputs, other.inputs, strict=True):
                if one is not there and one not in self.place and there not in self.place:
                    order.append(numbers.setdefault(one, len(numbers)))
        return list(numbers), order

    def _apart(self, own: list[list[Node]]) -> bool:
        """Nobody else reads what a block alone should read."""
        owner = {node: block for block, nodes in enumerate(own) for node in nodes}
        if len(owner) != sum(map(len, own)):
            return False
        outside = [*self.graph.roots(), *(write.target for write in self.graph.writes)]
        for node in self.graph.nodes:
            block = self.block_of(node)
            if block is None:
                outside.extend(node.inputs)
            elif any(owner.get(one, block) != block for one in node.inputs):
                return False
        return not any(node in owner for node in outside)

    def _outputs(self) -> tuple[tuple[tuple[int, int], ...], ...] | None:
        """The outputs of each block in the order of its nodes; None where they differ in the middle."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for number, output in enumerate(self.graph.outputs):
            block = self.block_of(output.value)
            if block is None:
                continue
            if output.alias is not None:
                return None
            found[block].append(((self.place[output.value] - self.start) % self.length, number))
        for one in found:
            one.sort()
        places = [[place for place, _ in one] for one in found]
        if any(one != places[1] for one in places[1:-1]):
            return None
        return tuple([tuple(one) for one in found])


def _shortened(graph: Graph, blocks: Blocks) -> ShortGraph | None:
    first = blocks.start + HEAD * blocks.length
    after = blocks.start + (blocks.count - TAIL) * blocks.length
    middle = range(HEAD, blocks.count - TAIL)
    gone_inputs = {number for block in middle for number in blocks.own[block]}
    gone_outputs = {number for block in middle for _, number in blocks.outputs[block]}
    inputs = [number for number in range(len(graph.inputs)) if number not in gone_inputs]
    outputs = [number for number in range(len(graph.outputs)) if number not in gone_outputs]
    # The block behind the gap reads the one before it.
    place = dict(
        zip(graph.nodes[after - blocks.length : after], graph.nodes[first - blocks.length : first], strict=True)
    )
    nodes = graph.nodes[:first]
    for old in graph.nodes[after:]:
        node = place[old] = with_inputs(old, tuple([place.get(one, one) for one in old.inputs]))
        nodes.append(node)
    results = list(_short_outputs(graph, inputs, outputs, place))
    if len(results) != len(outputs):
        return None
    writes = tuple([Write(one.target, place.get(one.value, one.value)) for one in graph.writes])
    kept = tuple([graph.inputs[number] for number in inputs])
    short = Graph(kept, nodes, tuple(results), writes, graph.name)
    return ShortGraph(short, blocks, tuple(inputs), tuple(outputs))


def _short_outputs(graph: Graph, inputs: list[int], outputs: list[int], place: dict[Node, Node]) -> Iterator[Output]:
    """The outputs that stay; one that is a view of what goes is left out."""
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
        yield Output(place.get(output.value, output.value), alias, output.requires_grad)
