"""Which values the forward saves for the backward: a minimum cut.

    %3 = mm(x, w); %4 = gelu(%3)        the backward reads the derivative of gelu at %3, and x and w
    candidates: %3, or what is inside of gelu; %3 is one tensor, gelu's insides are two: {%3, x, w} is the cut

A value costs the bytes that saving it moves: one read if it is in memory anyway (an input, an output, read or
made by a library op, read by loops on both sides of one), a write too if not. Never computed again: library ops, random
numbers, reductions, scans, scatters, values that a library op of the backward reads from memory anyway, and values
that are in memory anyway and that several stages of the backward need: the sums of a residual stream, each of which
would be made from all branches before it, and be in memory from then on. Views are never saved but their base.
Values inside of a checkpoint region are not saved whatever they cost, but for random numbers: backward computes them
again from what enters the region, and what leaves it is kept.
Source of the idea: Horace He and Shangdi Yu, "Transcending runtime-memory tradeoffs in checkpointing by being
fusion aware", MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from kiln.graph.autograd.flow import INFINITE, FlowNetwork
from kiln.graph.autograd.fusion_barriers import BarrierDepths
from kiln.graph.autograd.joint import JointGraph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import computed_from, has_effect, needed_by
from kiln.graph.prims.table import Kind
from kiln.symbolic import Int, ShapeEnv
from kiln.tensor.spec import TensorSpec

KEPT_KINDS = frozenset({Kind.REDUCTION, Kind.SCAN, Kind.SCATTER, Kind.RANDOM, Kind.LIBRARY, Kind.EFFECT, Kind.NESTED})
"""Ops whose result is saved rather than computed again."""
DRAWN = frozenset({Kind.RANDOM, Kind.EFFECT, Kind.NESTED})
"""Ops that are not done twice in a checkpoint region either."""

FAR, FARTHEST = 1.1, 50
"""A value that is one op further from its use in the backward counts as this much more expensive, up to a limit."""

UNKNOWN_SIZE = 4096
"""Stands for a size that only the data decide."""


@final
class Sides:
    """Which nodes of a joint graph need tangents, which the forward needs, and what crosses."""

    def __init__(self, joint: JointGraph) -> None:
        graph = joint.graph
        self.primals = graph.inputs[: joint.num_forward_inputs]
        self.tangents = graph.inputs[joint.num_forward_inputs :]
        self.backward = computed_from(graph.nodes, self.tangents)
        self.gradients = [output.value for output in graph.outputs[joint.num_forward_outputs :]]
        roots = [output.value for output in joint.forward_outputs] + [write.value for write in graph.writes]
        self.effects = [node for node in graph.nodes if has_effect(node) and node not in self.backward]
        self.forward_roots = roots
        self.forward = needed_by(graph.nodes, [*roots, *self.effects])
        self.needed = self._crossing(graph.nodes)
        self.nodes = graph.nodes
        self.recomputed = self._recomputed()

    def _recomputed(self) -> set[Node]:
        """Nodes of checkpoint regions whose values stay inside."""
        inside = {node for node in self.nodes if region_of(node) and node not in self.backward}
        if not inside:
            return inside
        leaving = set(map(base_of, self.forward_roots))
        for node in self.nodes:
            if node not in self.backward and not is_derivative(node):
                leaving.update(base_of(one) for one in node.inputs if region_of(one) not in (0, region_of(node)))
        drawn = {node for node in inside if node.op.kind in DRAWN}
        drawn.update(node for node in inside if node.op.name == "item" and node.inputs[0] in drawn)
        stay = inside - leaving - drawn
        # What backward computes of them alone, such as `1 - tanh(x) ** 2`, is no better saved than they are.
        for node in self.nodes:
            if is_derivative(node) and node not in self.backward and not stay.isdisjoint(node.inputs):
                stay.add(node)
        return stay

    def _crossing(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """Values that do not need tangents and are read by something that does, in order."""
        backward, found = self.backward, dict[Node, None]()
        for node in nodes:
            if node in backward:
                for one in node.inputs:
                    if one not in backward:
                        found[one] = None
        for node in self.gradients:
            if node not in backward:
                found[node] = None
        return found

    def read_by_libraries(self, backward: bool) -> set[Node]:
        """Values that library ops of one side read from memory; through views, their bases."""
        return {
            base_of(one)
            for node in self.nodes
            if node.op.kind is Kind.LIBRARY and (node in self.backward) is backward
            for one in node.inputs
        }


def is_derivative(node: Node) -> bool:
    """It was recorded by the autograd engine."""
    return node.origin is not None and node.origin.backward


def region_of(node: Node) -> int:
    """The checkpoint region it was recorded in."""
    return node.origin.region if node.origin is not None else 0


def values_to_save(sides: Sides, env: ShapeEnv | None) -> set[Node]:
    """The cheapest values from which the backward can be computed."""
    network = _CutNetwork(sides, env)
    return network.solve()


def values_without_recomputation(sides: Sides) -> set[Node]:
    """What the backward reads, but computed again as far as that is free: views and constants."""
    found: set[Node] = set()
    for node in sides.needed:
        base = base_of(node)
        if base.op.kind is not Kind.CREATE or base.inputs:
            found.add(base)
    return found


@final
class _CutNetwork:
    """Vertex 2k is the value of node k before it is saved, 2k+1 after; 0 is the source, 1 the sink."""

    def __init__(self, sides: Sides, env: ShapeEnv | None) -> None:
        self.sides = sides
        self.env = env
        self.net = FlowNetwork(2)
        self.vertices: dict[Node, int] = {}
        self.primals = set(sides.primals)
        self.distances = _distances(sides)
        in_memory = sides.read_by_libraries(backward=False)
        in_memory.update(map(base_of, sides.forward_roots))
        stages = BarrierDepths(sides.nodes, sides.backward)
        self.in_memory = in_memory | self.primals | stages.crossing
        self.kept = sides.read_by_libraries(backward=True)
        ends = {node for node in sides.nodes if node in self.kept or node.op.kind in KEPT_KINDS}
        self.streams = {node for node in stages.used_apart(ends) & stages.crossing if not self.is_cheap(node)}

    def solve(self) -> set[Node]:
        queue = list(self.sides.needed)
        for node in queue:
            self.net.add_edge(self.vertex(node) + 1, 1, INFINITE)
        seen = set(queue)
        for node in queue:
            if self.must_keep(node):
                self.net.add_edge(0, self.vertex(node), INFINITE)
                continue
            for one in node.inputs:
                self.net.add_edge(self.vertex(one) + 1, self.vertex(node), INFINITE)
                if one not in seen:
                    seen.add(one)
                    queue.append(one)
        side = self.net.sink_side(0, 1)
        return {node for node, place in self.vertices.items() if place not in side and place + 1 in side}

    def vertex(self, node: Node) -> int:
        place = self.vertices.get(node)
        if place is None:
            place = self.vertices[node] = self.net.add_vertex()
            self.net.add_vertex()
            self.net.add_edge(place, place + 1, self.cost(node))
        return place

    def must_keep(self, node: Node) -> bool:
        """It is there when the backward begins, or not at all: it is not computed again."""
        if node in self.sides.recomputed:
            return False
        if node in self.primals or node.op.name in ("item", "constant_tensor") or region_of(node):
            return node.op.kind is not Kind.VIEW
        if node not in self.sides.forward:
            return False
        if node.op.kind in KEPT_KINDS or node in self.streams:
            return True
        return node.op.kind is not Kind.CREATE and node in self.kept

    def is_cheap(self, node: Node) -> bool:
        """Is it made of no more bytes than it has, all of them in memory?"""
        if node.op.kind is Kind.CREATE or not isinstance(node.spec, TensorSpec):
            return True
        inputs = {base_of(one) for one in node.inputs}
        return all(one.op.kind is Kind.CREATE or self.is_in_memory(one) for one in inputs) and (
            sum([self.size(one) for one in inputs]) <= self.size(node)
        )

    def size(self, node: Node) -> int:
        """Bytes."""
        spec = node.spec
        if not isinstance(spec, TensorSpec) or node.op.kind is Kind.CREATE:
            return 0
        return self.hint(spec.numel()) * spec.dtype.itemsize

    def cost(self, node: Node) -> int:
        """Bytes moved by saving it, weighted by its distance from the backward."""
        spec = node.spec
        if isinstance(spec, tuple) or node.op.kind is Kind.VIEW or node in self.sides.recomputed:
            return INFINITE
        if not isinstance(spec, TensorSpec):
            return 1
        size = self.size(node)
        moved = size if self.is_in_memory(node) else 2 * size
        return 1 + int(moved * FAR ** min(self.distances.get(node, 0), FARTHEST))

    def is_in_memory(self, node: Node) -> bool:
        """The forward writes it anyway."""
        return node in self.in_memory or node.op.kind in KEPT_KINDS or node.op.name == "item"

    def hint(self, value: Int) -> int:
        if isinstance(value, int):
            return value
        return self.env.hint(value) if self.env is not None and self.env.has_hint(value) else UNKNOWN_SIZE


def _distances(sides: Sides) -> dict[Node, int]:
    """Steps from each value of the forward to the nearest reader in the backward."""
    distances: dict[Node, int] = dict.fromkeys(sides.needed, 0)
    for node in reversed(sides.nodes):
        if node not in sides.backward and (own := distances.get(node)) is not None:
            step = own if node.op.kind is Kind.VIEW else own + 1
            for one in node.inputs:
                if distances.get(one, step + 1) > step:
                    distances[one] = step
    return distances
