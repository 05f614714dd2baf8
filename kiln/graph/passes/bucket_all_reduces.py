"""Joins small neighbouring all-reduces, each of which would take about as long as the start of a message.

    %2 = opaque all_reduce(%0, 'sum', '0')         %2 = opaque all_reduce_coalesced((%0, %1), 'sum', '0')
    %3 = wait(%2, %0)                         =>   %3 = item(%2, index=0)
    %4 = opaque all_reduce(%1, 'sum', '0')         %4 = wait(%3, %0, %1)
    %5 = wait(%4, %1)                              ...

Neighbours have the same reduction, group, dtype and device, and no other effect that could be another collective is
between them. The bucket starts where its last member did; what was computed from the first results moves behind it. A
bucket grows while one side of the join is below `worth_a_message`: larger messages use the whole bandwidth alone, and
start earlier.
Needs: graphs that are not differentiated any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Arg, Attr, Node, bytes_of
from kiln.graph.ir.rewrite import has_effect, rebuilt
from kiln.graph.passes.manager import PassContext
from kiln.graph.prims.rows import PRIMS
from kiln.support.records import dataclass

ALL_REDUCE = "_c10d_functional.all_reduce.default"
COALESCED = "_c10d_functional.all_reduce_coalesced.default"
WORTH_A_MESSAGE = {"cuda": 4 << 20, "cpu": 256 << 10}
"""Bytes whose transfer takes about as long as the start of a collective: 20 us at 200 GB/s, 100 us at 2.5 GB/s."""
LARGEST = 25 << 20
"""Bytes of a bucket."""


@final
@dataclass(frozen=True)
class BucketAllReduces:
    name: str = "bucket-all-reduces"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        joined = 0
        nodes = graph.nodes
        while (found := next_bucket(nodes)) is not None:
            joined += len(found.starts) - 1
            graph = with_bucket(graph, found)
            nodes = graph.nodes
        return graph, joined


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """All-reduces that become one, and the nodes up to its last that have to move behind it."""

    starts: tuple[Node, ...]
    moved: frozenset[Node]


def next_bucket(nodes: Sequence[Node]) -> Bucket | None:
    """The first bucket of at least two."""
    starts: list[Node] = []
    dependent: set[Node] = set()
    for node in nodes:
        if starts and not dependent.isdisjoint(node.inputs):
            dependent.add(node)
        if node.op.name == "opaque" and node.attrs["target"] == ALL_REDUCE:
            if starts and joins(starts, node) and node not in dependent:
                starts.append(node)
            elif len(starts) > 1:
                break
            else:
                starts, dependent = [node], set()
            dependent.add(node)
        elif has_effect(node) and node.op.name != "wait":
            if len(starts) > 1:
                break
            starts, dependent = [], set()
    if len(starts) < 2:
        return None
    last = nodes.index(starts[-1])
    return Bucket(tuple(starts), frozenset(node for node in nodes[:last] if node in dependent))


def joins(starts: Sequence[Node], node: Node) -> bool:
    """Whether an all-reduce is like those of a bucket, and joining them saves time."""
    first = starts[0]
    alike = node.attrs["args"] == first.attrs["args"] and node.tensor.dtype is first.tensor.dtype
    if not alike or node.tensor.device != first.tensor.device:
        return False
    sizes = [bytes_of(start) for start in (*starts, node)]
    if any(size is None for size in sizes):
        return False
    known = [size for size in sizes if size is not None]
    before, added = sum(known[:-1]), known[-1]
    return before + added <= LARGEST and min(before, added) <= WORTH_A_MESSAGE.get(node.tensor.device.type, 0)


def with_bucket(graph: Graph, bucket: Bucket) -> Graph:
    """The graph with the bucket in place of its last member."""
    starts = bucket.starts
    operands = tuple([start.inputs[0] for start in starts])
    _, *options = starts[0].attrs["args"]
    attrs: dict[str, Attr] = {
        "target": COALESCED,
        "args": (tuple([Arg(place) for place in range(len(starts))]), *options),
        "kwargs": (),
    }
    whole = Node(PRIMS["opaque"], operands, attrs, tuple([start.tensor for start in starts]), starts[-1].origin)
    parts = [
        Node(PRIMS["item"], (whole,), {"index": place}, start.tensor, start.origin)
        for place, start in enumerate(starts)
    ]
    replaced = dict(zip(starts, parts, strict=True))
    parts_of = dict(replaced)
    nodes, behind = list[Node](), list[Node]()
    for node in graph.nodes:
        if node is starts[-1]:
            nodes += [whole, *parts, *[rewired(other, replaced, parts_of, operands) for other in behind]]
            behind = []
        elif node in bucket.moved:
            behind += [node] if node not in replaced else []
        elif node not in replaced:
            nodes.append(rewired(node, replaced, parts_of, operands))
    return rebuilt(graph, nodes, replaced)


def rewired(node: Node, replaced: dict[Node, Node], parts: Mapping[Node, Node], operands: tuple[Node, ...]) -> Node:
    """The node on new inputs; a wait for one of the `parts` of the bucket holds all that the bucket reads."""
    if replaced.keys().isdisjoint(node.inputs):
        return node
    inputs = tuple([replaced.get(value, value) for value in node.inputs])
    if node.op.name == "wait" and node.inputs[0] in parts:
        inputs = (inputs[0], *dict.fromkeys(operands))
    made = Node(node.op, inputs, node.attrs, node.spec, node.origin)
    replaced[node] = made
    return made
