"""Fewer saved values: what the option `memory_budget` leaves room for, the rest is computed again.

    saved for speed: %3 4 MB, %5 1 MB, %9 4 MB      budget 0.5: 4.5 MB      %9 is dropped: an add of two others
    budget 0: as little as is of use

A knapsack by greedy steps: the value that costs the least time per byte is dropped, until the others fit. To compute a
value again takes the nodes back to what is still saved; so each step changes what the others cost. Inputs are held by
the caller and cost nothing; random numbers cost a seed.

What is computed again for an early layer waits in memory for the backward of that layer, and at some point the backward
needs more memory than was gained. So of the sets on the way that is saved whose bytes, and those that the backward then
holds at most, have the lowest sum: what is saved waits while other regions run, too.

With a link to the host, what it carries while the forward runs is moved there (`link_queue.py`), and leaves room for
other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from typing import final

from kiln.graph.autograd.backward_order import peak_of_backward
from kiln.graph.autograd.link_queue import LinkQueue
from kiln.graph.autograd.min_cut import (
    DRAWN,
    Sides,
    draw_time,
    hint_of,
    values_to_save,
    values_without_recomputation,
)
from kiln.graph.ir.flops import node_flops
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.size_oracle import GuardFreeOracle, UnknownRelation
from kiln.graph.prims.meta import is_dense
from kiln.graph.prims.table import Kind
from kiln.support.host_link import HostLink
from kiln.symbolic import Int, ShapeEnv
from kiln.tensor.spec import TensorSpec

FLOPS_PER_BYTE = 16
"""Operations that a machine does while it moves a byte; only the order of candidates depends on it."""
CALL = 4096
"""Bytes that are moved in the time that an op costs at least."""


LOOKS = 16
"""How often the peak of the backward is estimated on the way from all saved values to none."""


def saved_values(
    sides: Sides,
    env: ShapeEnv | None,
    *,
    recompute: bool,
    budget: float,
    link: HostLink | None = None,
    offload: bool = False,
) -> tuple[set[Node], set[Node]]:
    """What the forward saves: the cheapest values, or without `recompute` what the backward reads; with a `budget`
    below 1 a part of these, in that part of their bytes. And those of them that go to the host over the `link`:
    where the program asks for that, with `offload` also others."""
    cheapest = recompute or sides.recomputed
    chosen = values_to_save(sides, env) if cheapest else values_without_recomputation(sides)
    kept, moved = chosen, set[Node]()
    if budget < 1 or (offload and link is not None):
        knapsack = _Knapsack(sides, chosen, env, link if offload else None)
        kept, moved = knapsack.fill(budget), knapsack.moved
    asked = {node for node in kept if node.origin is not None and node.origin.to_host}
    if asked and link is not None:
        moved |= set(filter(_Knapsack(sides, kept, env, link).can_move, asked))
    return kept, moved


@final
class _Knapsack:
    def __init__(self, sides: Sides, chosen: set[Node], env: ShapeEnv | None, link: HostLink | None) -> None:
        self.sides = sides
        self.env = env
        self.primals = set(sides.primals)
        self.order = {node: number for number, node in enumerate(sides.nodes)}
        self.kept = set(chosen)
        self.moved: set[Node] = set()
        self.times: dict[Node, int] = {}
        self.link = link
        self.queue = None if link is None else LinkQueue(sides, link, self.size, self.flops)
        self.shared = {base_of(root) for root in sides.forward_roots} | sides.copied | set(sides.drawn)
        """What may be in memory whether it is saved or not, and what a second derivative reads."""

    def fill(self, budget: float) -> set[Node]:
        candidates = [node for node in self.sides.nodes if node in self.kept and self.can_drop(node)]
        left = total = sum(map(self.size, candidates))
        movable = [node for node in self.sides.nodes if node in self.kept and self.can_move(node)]
        limit, next_look = budget * total, total
        found: list[tuple[int, set[Node], set[Node]]] = []
        while True:
            moved = self.queue.taken(filter(self.kept.__contains__, movable)) if self.queue is not None else set()
            worth: dict[Node, float] = {}
            if left - sum(map(self.size, moved.intersection(candidates))) > limit:
                worth = {node: self.time_again(node) / gain for node in candidates if (gain := self.gain(node)) > 0}
            if left <= next_look or not worth:
                saved = self.kept | self.behind(list(self.sides.needed), self.kept)[1]
                waiting = sum(map(self.size, saved - self.primals - moved))
                found.append((waiting + peak_of_backward(self.sides, saved, moved, self.size), saved, moved))
                next_look = left - total // LOOKS
            if not worth:
                break
            dropped = min(worth, key=worth.__getitem__)
            left -= self.gain(dropped)
            candidates.remove(dropped)
            self.kept.remove(dropped)
        _, saved, self.moved = min(reversed(found), key=itemgetter(0))
        return saved

    def can_move(self, node: Node) -> bool:
        """Whether the link can take it, and no other value shares its memory."""
        link, spec = self.link, node.spec
        if link is None or not isinstance(spec, TensorSpec) or node in self.primals or node in self.shared:
            return False
        if spec.device.type != link.device or self.size(node) < link.least or node.op.kind is Kind.VIEW:
            return False
        with suppress(UnknownRelation):
            return is_dense(GuardFreeOracle(self.env), spec.sizes, spec.strides)
        return False

    def can_drop(self, node: Node) -> bool:
        return node not in self.primals and not self.is_fixed(node) and isinstance(node.spec, TensorSpec)

    def is_fixed(self, node: Node) -> bool:
        """Whether it cannot be computed again: a seed, a number from data, an effect."""
        if node in self.sides.recomputed:
            return False
        fixed = node.op.kind in DRAWN or node.op.name in ("item", "constant_tensor")
        return fixed or node in self.sides.fixed_draws

    def size(self, node: Node) -> int:
        """Bytes."""
        spec = node.spec
        return self.hint(spec.numel()) * spec.dtype.itemsize if isinstance(spec, TensorSpec) else 0

    def flops(self, node: Node) -> int:
        return self.hint(node_flops(node))

    def time(self, node: Node) -> int:
        """Of an op, as bytes that are moved in that time."""
        if node not in self.times:
            time = 0
            if node.op.kind not in (Kind.VIEW, Kind.STRUCTURE, Kind.CREATE):
                moved = self.size(node) + sum(map(self.size, node.inputs))
                time = CALL + moved + self.flops(node) // FLOPS_PER_BYTE
                time += draw_time(node, self.hint) if node.op.kind is Kind.DRAW else 0
            self.times[node] = time
        return self.times[node]

    def time_again(self, node: Node) -> int:
        return sum(map(self.time, self.behind([node], self.kept - {node})[0]))

    def gain(self, node: Node) -> int:
        """Bytes that are free without it, less those of what is saved in its place."""
        instead = self.behind([node], self.kept - {node})[1] - self.primals
        return self.size(node) - sum(map(self.size, instead))

    def behind(self, wanted: Sequence[Node], kept: set[Node]) -> tuple[set[Node], set[Node]]:
        """The nodes that compute `wanted` from `kept`, and what else they start from: inputs, and values that cannot be
        computed again."""
        computed: set[Node] = set()
        ends: set[Node] = set()
        stack = [node for node in wanted if node not in kept]
        while stack:
            node = stack.pop()
            if node in computed or node in ends:
                continue
            if node in self.primals or self.is_fixed(node):
                ends.add(node)
                continue
            computed.add(node)
            stack += [value for value in node.inputs if value not in kept]
        return computed, ends

    def hint(self, value: Int) -> int:
        return hint_of(self.env, value)
