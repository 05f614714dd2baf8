"""Which values the forward saves for the backward: a minimum cut.

    %3 = mm(x, w); %4 = gelu(%3)        the backward reads the derivative of gelu at %3, and x and w
    candidates: %3, or values inside gelu; %3 is a single tensor, gelu's are two: {%3, x, w} is the cut

The cost of a value is the bytes moved by saving it: a read if it is in memory anyway (an input, an output, read or made
by a library op, or read on both sides of one), else also a write. Random numbers are drawn again from their seed where
that takes less time than to move them. Never recomputed: library ops, seeds, reductions, scans, scatters, values that a
library op of the backward reads from memory anyway, and values in memory that the backward needs at several barrier
depths: the sums of a residual stream, each of which would be recomputed from all earlier branches. What is computed
element by element from less in memory is not one of them. Of a view, its base is saved.
An input or a result that eager does not save may change before the backward: to save it, it is copied.
Values inside a checkpoint region are never saved, except seeds and what its policy saves: the backward
recomputes them from what enters the region; what leaves it is kept. So are parameters that a rank has a shard of, and
gathers when it needs them.
Source of the idea: Horace He and Shangdi Yu, "Transcending runtime-memory tradeoffs in checkpointing by being
fusion aware", MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import final

from kiln.graph.autograd.eager_saves import is_derivative, is_kept, region_of
from kiln.graph.autograd.flow import INFINITE, FlowNetwork
from kiln.graph.autograd.fusion_barriers import BarrierDepths
from kiln.graph.autograd.joint import JointGraph
from kiln.graph.autograd.tangent_paths import TangentPaths
from kiln.graph.ir.node import Node, Origin, base_of
from kiln.graph.ir.rewrite import computed_from, has_effect, missing_symbols, needed_by
from kiln.graph.prims.table import Kind
from kiln.plan.collective_operators import UNSHARD
from kiln.symbolic import Int, ShapeEnv
from kiln.tensor.spec import TensorSpec

KEPT_KINDS = frozenset({Kind.REDUCTION, Kind.SCAN, Kind.SCATTER, Kind.RANDOM, Kind.LIBRARY, Kind.EFFECT, Kind.NESTED})
"""Ops whose result is saved rather than recomputed."""
DRAWN = frozenset({Kind.RANDOM, Kind.EFFECT, Kind.NESTED})
"""Ops that are not repeated even in a checkpoint region."""

DRAW_TIME = {"cpu": 48, "cuda": 4}
"""Bytes that a device moves in the time that it draws a number: 5.5 ns of one core, 1 ps of an H200 in a kernel that
waits for memory. A normal number takes twice as long."""

DISTANCE_FACTOR, MAX_DISTANCE = 1.1, 50
"""Factor on the cost of a value for each op between it and its use in the backward, up to a limit."""

MOST_CHEAP = 16
"""Values that are looked through for what another is computed from."""

UNKNOWN_SIZE = 4096
"""Assumed for a data-dependent size."""


@final
class Sides:
    """Which nodes belong to the `backward`, which the forward needs, and what the backward reads."""

    def __init__(
        self,
        nodes: Sequence[Node],
        primals: Sequence[Node],
        backward: set[Node],
        forward_roots: Sequence[Node],
        gradients: Sequence[Node],
    ) -> None:
        self.nodes = nodes
        self.primals = tuple(primals)
        self.backward = backward
        self.forward_roots = list(forward_roots)
        self.gradients = list(gradients)
        self.effects = [node for node in nodes if has_effect(node) and node not in backward]
        self.forward = needed_by(nodes, [*forward_roots, *self.effects])
        self.needed = self._crossing(nodes)
        self.recomputed = self._recomputed()
        self.drawn: dict[Node, Origin | None] = {}
        """Random numbers that a second derivative needs, and the origins of their draws."""
        self.fixed_draws: set[Node] = set()
        """Those that are saved in any case."""
        self.changing: set[Node] = set()
        """Inputs that the forward writes to."""
        self.saved_result: dict[Node, int] = {}
        """Of values that are results and that eager saves: the number of the result."""
        self.copied: set[Node] = set()
        """Inputs and results that are copied if they are saved, for they may change before the backward."""

    @staticmethod
    def of_joint(joint: JointGraph, keep_draws: bool) -> Sides:
        """Of a backward that is called later: inputs and results may have changed by then."""
        graph = joint.graph
        made = Sides(
            graph.nodes,
            graph.inputs[: joint.num_forward_inputs],
            computed_from(graph.nodes, joint.tangents),
            [*[output.value for output in joint.forward_outputs], *[write.value for write in graph.writes]],
            [output.value for output in graph.outputs[joint.num_forward_outputs :]],
        )
        if keep_draws:
            drawn = [node for node in graph.nodes if node.op.kind is Kind.DRAW and node in made.forward]
            made.drawn = {node: node.origin for node in drawn}
            made.fixed_draws = {node for node in drawn if joint.wrappers or not made.is_redrawable(node)}
        made.changing = {write.target for write in graph.writes} | {made.primals[index] for index in joint.carried}
        made.copied = made.changing | made._may_change(joint)
        return made

    def _may_change(self, joint: JointGraph) -> set[Node]:
        """Inputs and results that eager does not save for all gradients that read them. Of equal results, the one that
        eager saves is saved, if only one is."""
        saves = joint.saves
        changing = {node for number, node in enumerate(self.primals) if number not in saves.inputs}
        results: dict[Node, list[int]] = {}
        for number, output in enumerate(joint.forward_outputs[: joint.num_forward_outputs - len(joint.carried)]):
            numbers = results.setdefault(base_of(output.value), [])
            if number in saves.outputs:
                numbers.append(number)
        paths = TangentPaths(self.nodes, joint.tangents, self.gradients)
        for (node, numbers), readers in zip(results.items(), paths.readers(list(results)), strict=True):
            tangents = saves.outputs[numbers[0]].tangents if len(numbers) == 1 else 0
            read = range(paths.count) if readers is None else readers
            if len(numbers) == 1 and all(tangents >> number & 1 for number in read):
                self.saved_result[node] = numbers[0]
            elif node not in self.primals:
                changing.add(node)
        return changing

    def _recomputed(self) -> set[Node]:
        """Nodes of checkpoint regions whose values do not leave their region."""
        inside = {node for node in self.nodes if region_of(node) and node not in self.backward}
        if not inside:
            return self._unsharded()
        leaving = set(map(base_of, self.forward_roots))
        for node in self.nodes:
            if node not in self.backward and not is_derivative(node):
                leaving.update(base_of(value) for value in node.inputs if region_of(value) not in (0, region_of(node)))
        drawn = {node for node in inside if node.op.kind in DRAWN or is_kept(node)}
        drawn.update(node.inputs[0] for node in inside if node.op.name == "item" and is_kept(node))
        drawn.update(node for node in inside if node.op.name == "item" and node.inputs[0] in drawn)
        stay = inside - leaving - drawn
        # What autograd computes from them alone, such as `1 - tanh(x) ** 2`, is recomputed too.
        for node in self.nodes:
            if is_derivative(node) and node not in self.backward and not stay.isdisjoint(node.inputs):
                stay.add(node)
        return stay | self._unsharded()

    def _unsharded(self) -> set[Node]:
        """Whole parameters, gathered from shards, and the calls that gather them."""
        found: set[Node] = set()
        for node in self.nodes:
            gathers = node.op.name == "opaque" and node.attrs["target"] == UNSHARD
            if gathers or (node.op.name in ("item", "wait") and node.inputs[0] in found):
                found.add(node)
        return found - self.backward

    def is_redrawable(self, node: Node) -> bool:
        """Whether random numbers are computed from their seed and the sizes of inputs alone."""
        return len(node.inputs) == 1 and not missing_symbols([node], self.primals)

    def _crossing(self, nodes: Iterable[Node]) -> dict[Node, None]:
        """Values without tangents that nodes with tangents read, in order."""
        backward, found = self.backward, dict[Node, None]()
        for node in nodes:
            if node in backward:
                for value in node.inputs:
                    if value not in backward:
                        found[value] = None
        for node in self.gradients:
            if node not in backward:
                found[node] = None
        return found

    def read_by_libraries(self, backward: bool) -> set[Node]:
        """Values that library ops of the forward (or backward) read from memory; of views, their bases."""
        return {
            base_of(value)
            for node in self.nodes
            if node.op.kind is Kind.LIBRARY and (node in self.backward) is backward
            for value in node.inputs
        }


def values_to_save(sides: Sides, env: ShapeEnv | None) -> set[Node]:
    """The cheapest values from which the backward can be computed."""
    return _CutNetwork(sides, env).solve()


def values_without_recomputation(sides: Sides) -> set[Node]:
    """What the backward reads; views and constants are recomputed, as they cost nothing."""
    found: set[Node] = set()
    for node in sides.needed:
        base = base_of(node)
        if base.op.kind is not Kind.CREATE or base.inputs:
            found.add(base)
    return found


@final
class _CutNetwork:
    """Vertex 2k is node k before it is saved, 2k+1 after; 0 is the source, 1 the sink."""

    def __init__(self, sides: Sides, env: ShapeEnv | None) -> None:
        self.sides = sides
        self.env = env
        self.net = FlowNetwork(2)
        self.vertices: dict[Node, int] = {}
        self.primals = set(sides.primals)
        self.distances = _distances(sides)
        in_memory = sides.read_by_libraries(backward=False)
        in_memory.update(map(base_of, sides.forward_roots))
        depths = BarrierDepths(sides.nodes, sides.backward)
        self.in_memory = in_memory | self.primals | depths.crossing
        self.kept = sides.read_by_libraries(backward=True)
        ends = {node for node in sides.nodes if node in self.kept or node.op.kind in KEPT_KINDS}
        sums = depths.needed_at_several(ends) & depths.crossing
        self.residual_sums = {node for node in sums if not self.is_cheap(node)}

    def solve(self) -> set[Node]:
        queue = list(self.sides.needed)
        for node in queue:
            self.net.add_edge(self.vertex(node) + 1, 1, INFINITE)
        seen = set(queue)
        for node in queue:
            if self.must_keep(node):
                self.net.add_edge(0, self.vertex(node), INFINITE)
                continue
            if node.op.kind is Kind.DRAW and node not in self.sides.recomputed:
                self.net.add_edge(0, self.vertex(node), draw_time(node, self.hint))
            for value in node.inputs:
                self.net.add_edge(self.vertex(value) + 1, self.vertex(node), INFINITE)
                if value not in seen:
                    seen.add(value)
                    queue.append(value)
        side = self.net.sink_side(0, 1)
        return {node for node, vertex in self.vertices.items() if vertex not in side and vertex + 1 in side}

    def vertex(self, node: Node) -> int:
        vertex = self.vertices.get(node)
        if vertex is None:
            vertex = self.vertices[node] = self.net.add_vertex()
            self.net.add_vertex()
            self.net.add_edge(vertex, vertex + 1, self.cost(node))
        return vertex

    def must_keep(self, node: Node) -> bool:
        """Whether it is never recomputed."""
        if node in self.sides.recomputed:
            return False
        if node in self.primals or node.op.name in ("item", "constant_tensor") or region_of(node):
            return node.op.kind is not Kind.VIEW
        if node not in self.sides.forward:
            return False
        if node.op.kind in KEPT_KINDS or node in self.residual_sums:
            return True
        return node.op.kind is not Kind.CREATE and node in self.kept

    def is_cheap(self, node: Node) -> bool:
        """Whether it is computed, element by element, from values in memory with no more bytes than its own."""
        if not isinstance(node.spec, TensorSpec):
            return True
        read, left, seen = 0, self.size(node), {node}
        queue = list(node.inputs)
        while queue and read <= left and len(seen) <= MOST_CHEAP:
            value = base_of(queue.pop())
            if value in seen:
                continue
            seen.add(value)
            if value.op.kind is Kind.CREATE or self.is_in_memory(value):
                read += self.size(value)
            elif value.op.kind is Kind.POINTWISE:
                queue += value.inputs
            else:
                return False
        return not queue and read <= left

    def size(self, node: Node) -> int:
        """Bytes."""
        spec = node.spec
        if not isinstance(spec, TensorSpec) or node.op.kind is Kind.CREATE:
            return 0
        return self.hint(spec.numel()) * spec.dtype.itemsize

    def cost(self, node: Node) -> int:
        """Bytes moved by saving it, weighted by its distance to the backward."""
        spec = node.spec
        if node in self.sides.fixed_draws:
            return 1  # saved in any case
        if isinstance(spec, tuple) or node.op.kind is Kind.VIEW or node in self.sides.recomputed:
            return INFINITE
        if not isinstance(spec, TensorSpec):
            return 1
        size = self.size(node)
        moved = size if self.is_in_memory(node) and node not in self.sides.copied else 2 * size
        return 1 + int(moved * DISTANCE_FACTOR ** min(self.distances.get(node, 0), MAX_DISTANCE))

    def is_in_memory(self, node: Node) -> bool:
        """Whether the forward has it in memory anyway."""
        return node in self.in_memory or node.op.kind in KEPT_KINDS or node.op.name == "item"

    def hint(self, value: Int) -> int:
        return hint_of(self.env, value)


def hint_of(env: ShapeEnv | None, value: Int) -> int:
    """A likely value; of sizes that data decide none is known."""
    if isinstance(value, int):
        return value
    return env.hint(value) if env is not None and env.has_hint(value) else UNKNOWN_SIZE


def draw_time(node: Node, hint: Callable[[Int], int]) -> int:
    """Of random numbers, as bytes that are moved in that time."""
    time = DRAW_TIME.get(node.tensor.device.type, DRAW_TIME["cpu"])
    return hint(node.tensor.numel()) * time * (2 if node.attrs["distribution"] == "normal" else 1)


def _distances(sides: Sides) -> dict[Node, int]:
    """Ops between each value of the forward and its nearest reader in the backward."""
    distances: dict[Node, int] = dict.fromkeys(sides.needed, 0)
    for node in reversed(sides.nodes):
        if node not in sides.backward and (own := distances.get(node)) is not None:
            step = own if node.op.kind is Kind.VIEW else own + 1
            for value in node.inputs:
                if distances.get(value, step + 1) > step:
                    distances[value] = step
    return distances
