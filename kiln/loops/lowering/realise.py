"""Which values get a buffer, and which are inlined into their readers.

    x = add(a, b);  mean = sum(x);  y = sub(x, mean)         x: two readers, two loads  =>  buffer ("shared_reads")
    h = mul(x, s);  y = relu(h)                              h: one reader              =>  inline
    e = exp(q);     p = expand(e, (4096, 64))                e: evaluated 64 times      =>  buffer ("repeated")

A reader is a loop node or a call, found by following inlined users; a value with one reader is inlined. A value that
is given a buffer is not necessarily stored: the schedule fuses its producer with the readers, and computes it once.
Rules are tried in order; the first that says yes names the reason. Needs: nodes in order, without dead ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind
from kiln.loops.lowering.column import ELEMENT
from kiln.symbolic import Int, is_static
from kiln.tensor.spec import TensorSpec

EXPENSIVE = 4
"""Arithmetic cost per element from which computing a value once more costs more than a load."""
VERY_EXPENSIVE = 24
"""The same for a value that is computed once per row."""
MAX_DEPTH = 64
"""Longest chain of inlined ops: bounds the size of bodies and the depth of recursion."""
MOST_LOADS = 64
"""Tensors that one body reads, besides small ones: the same for trees of ops."""
THROUGH_STORAGE = frozenset({"as_strided", "view_dtype"})
"""Views that need the memory of what they look at."""
BY_DATA = frozenset({"gather", "index"})
MASKING = frozenset({"cat", "pad", "select_scatter", "slice_scatter", "diagonal_scatter"})
MANY = 64
"""Counting places stops here."""
MASK_COST = 2
"""Arithmetic of choosing between two inputs by their place."""
LONG_ROW = 16
"""A row of so many elements pays for computing once per row what does not change along it."""
SMALL = 1024
"""A broadcast operand of at most so many elements stays in the nearest cache: reading it is free."""


class Repeats(IntEnum):
    """How often a reader evaluates an element: once; once per row, outside of the inner loop; again and again."""

    NEVER = 0
    IN_ROW = 1
    ANYWHERE = 2


@final
@dataclass(slots=True)
class Use:
    """What is known of a value's uses, collected from its users (which stand later and are decided already)."""

    readers: set[Node] = field(default_factory=set)  # up to two: one or more than one is what matters
    in_place: int = 0  # at how many indices one body needs it, for users that need it at their own index
    elsewhere: int = 0  # the same for users that move it
    in_memory: bool = False  # a call, an output or a write needs a tensor
    repeated: Repeats = Repeats.NEVER
    masked: bool = False  # evaluated only where a mask holds

    @property
    def places(self) -> int:
        """How often the ops below would stand in one body."""
        return max(1, min(self.in_place + self.elsewhere, MANY))


@final
@dataclass(frozen=True, slots=True)
class Cost:
    """Of computing one element when everything below that has a single user is inlined."""

    flops: int = 0
    loads: int = 0
    depth: int = 0
    indirect: bool = False


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """A value gets a buffer because of `name`, when `applies`."""

    name: str
    applies: Callable[[Node, Use, Cost], bool]


# Absent on purpose: "is large". What has one reader is never stored, however large.
RULES = (
    Rule("in_memory", lambda node, use, cost: use.in_memory),
    Rule("deep", lambda node, use, cost: cost.depth >= MAX_DEPTH),
    Rule("wide", lambda node, use, cost: cost.loads >= MOST_LOADS),
    Rule("indirect_under_mask", lambda node, use, cost: use.masked and cost.indirect),
    Rule("repeated", lambda node, use, cost: use.repeated is Repeats.ANYWHERE and cost.flops >= EXPENSIVE),
    Rule("repeated_in_row", lambda node, use, cost: use.repeated is Repeats.IN_ROW and cost.flops >= VERY_EXPENSIVE),
    Rule("pieces", lambda node, use, cost: node.op.name == "cat" and cost.flops >= VERY_EXPENSIVE),
    Rule("many_places", lambda node, use, cost: (use.places - 1) * cost.flops >= VERY_EXPENSIVE),
    Rule("shared_work", lambda node, use, cost: len(use.readers) > 1 and cost.flops >= EXPENSIVE),
    Rule("shared_reads", lambda node, use, cost: len(use.readers) > 1 and cost.loads > 1),
    Rule("shared_gather", lambda node, use, cost: len(use.readers) > 1 and cost.indirect),
)


def choose_realised(graph: Graph, nodes: Sequence[Node], outside: frozenset[Node] = frozenset()) -> dict[Node, str]:
    """The nodes with element rules that get a buffer, with the name of the rule; those of `outside` are calls."""
    inlinable = {node for node in nodes if node not in outside and ELEMENT.get(node.op.name) is not None}
    costs = _costs(nodes, inlinable)
    uses: dict[Node, Use] = {node: Use() for node in nodes}
    for root in results(graph):
        if root in uses:
            uses[root].in_memory = True
    realised: dict[Node, str] = {}
    for node in reversed(nodes):
        use = uses[node]
        is_view = node.op.kind is Kind.VIEW
        inlined = node in inlinable
        if inlined and not is_view:
            rule = next((rule for rule in RULES if rule.applies(node, use, costs[node])), None)
            if rule is not None:
                realised[node] = rule.name
                inlined = False
        _pass_on(node, use, inlined, node in inlinable or (node not in outside and node.op.kind in LOOPS), uses)
    return realised


LOOPS = frozenset({Kind.REDUCTION, Kind.SCAN, Kind.SCATTER})


def _pass_on(node: Node, use: Use, inlined: bool, in_loops: bool, uses: dict[Node, Use]) -> None:
    """Tell the inputs of `node` how they are used."""
    name = node.op.name
    for place, one in enumerate(node.inputs):
        below = uses.get(one)
        if below is None:
            continue
        if len(below.readers) < 2:
            below.readers |= use.readers if inlined else {node}
        _count_places(node, below, use.places if inlined else 1)
        here = _repeats(node, place)
        below.repeated = max(below.repeated, here, use.repeated if inlined else Repeats.NEVER)
        below.masked |= (inlined and use.masked) or name in MASKING
        below.in_memory |= not in_loops or (use.in_memory and node.op.kind is Kind.VIEW) or name in THROUGH_STORAGE


def _count_places(node: Node, below: Use, places: int) -> None:
    """Users at the same index share one evaluation; one that moves its input needs another."""
    if node.op.kind is Kind.POINTWISE or node.op.kind is Kind.REDUCTION:
        below.in_place = max(below.in_place, places)
    else:
        below.elsewhere = min(below.elsewhere + places, MANY)


def _repeats(node: Node, place: int) -> Repeats:
    """How often does `node` ask for an element of input `place`?"""
    name, result, operand = node.op.name, node.spec, node.inputs[place].spec
    if not isinstance(result, TensorSpec) or not isinstance(operand, TensorSpec):
        return Repeats.NEVER
    if name in BY_DATA:
        # Indices are the same along what follows the picked dimensions.
        follows = name == "index" and place > 0 and node.attrs["axes"][0] + operand.rank < result.rank
        return Repeats.IN_ROW if follows else Repeats.NEVER if name == "gather" and place else Repeats.ANYWHERE
    if name == "unfold":
        return Repeats.ANYWHERE
    if node.op.kind is Kind.POINTWISE or name == "expand":
        return _broadcast_repeats(result, operand)
    return Repeats.NEVER


def _broadcast_repeats(result: TensorSpec, operand: TensorSpec) -> Repeats:
    """Is `operand` repeated along the innermost dimensions of `result` (then loops compute it outside), or others?"""
    if result.sizes == operand.sizes:
        return Repeats.NEVER
    missing = result.rank - operand.rank
    order = list(range(result.rank))[::-1]
    strides = [stride for stride in result.strides if is_static(stride) and stride != 0]
    if len(strides) == result.rank:
        order.sort(key=strides.__getitem__)
    repeated = [axis for axis in order if axis < missing or operand.sizes[axis - missing] == 1 != result.sizes[axis]]
    if not repeated:
        return Repeats.NEVER
    run: Int = 1
    for axis in order:
        if result.sizes[axis] != 1 and axis not in repeated:
            break
        run = run * result.sizes[axis]
    return Repeats.ANYWHERE if is_static(run) and run < LONG_ROW else Repeats.IN_ROW


def _costs(nodes: Sequence[Node], inlinable: set[Node]) -> dict[Node, Cost]:
    users: dict[Node, int] = dict.fromkeys(nodes, 0)
    for node in nodes:
        for one in node.inputs:
            if one in users:
                users[one] += 1
    costs: dict[Node, Cost] = {}
    for node in nodes:
        if node in inlinable:
            costs[node] = _cost(node, costs, users)
    return costs


def _cost(node: Node, costs: dict[Node, Cost], users: dict[Node, int]) -> Cost:
    flops, loads, depth, indirect = node.op.flops, 0, 0, node.op.name in BY_DATA
    if node.op.name in MASKING:
        flops += MASK_COST * (len(node.inputs) - 1)
    for one in node.inputs:
        cost = costs.get(one)
        if cost is None:
            loads += _is_worth_a_load(one)
            continue
        # What has several users and work in it will have a buffer of its own.
        shared = users[one] > 1 and (cost.flops >= EXPENSIVE or cost.loads > 1)
        if shared or cost.depth >= MAX_DEPTH or cost.loads >= MOST_LOADS:
            loads += _is_worth_a_load(one)
        else:
            flops, loads, indirect = flops + cost.flops, loads + cost.loads, indirect or cost.indirect
            depth = max(depth, cost.depth)
    return Cost(flops, loads, depth + 1, indirect)


def _is_worth_a_load(node: Node) -> bool:
    if not isinstance(node.spec, TensorSpec):
        return False
    numel = node.spec.numel()
    return not (is_static(numel) and numel <= SMALL)


def results(graph: Graph) -> Iterator[Node]:
    """The values that leave the region: outputs that are no aliases, and new contents of inputs."""
    for output in graph.outputs:
        if output.alias is None:
            yield output.value
    for write in graph.writes:
        yield write.value


def reachable(graph: Graph) -> Iterator[Node]:
    """The nodes that outputs, writes and effects need, in order."""
    needed = set(results(graph))
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node in needed or node.op.kind is Kind.EFFECT:
            kept.append(node)
            needed.update(node.inputs)
    return reversed(kept)
