"""Which values get a buffer, and which are inlined into their readers.

    x = add(a, b);  mean = sum(x);  y = sub(x, mean)         x: two readers, two loads  =>  buffer ("shared_reads")
    h = mul(x, s);  y = relu(h)                              h: one reader              =>  inline
    e = exp(q);     p = expand(e, (4096, 64))                e: evaluated 64 times      =>  buffer ("repeated")

A reader is a loop node or a call, found by following inlined users; a value with one reader is inlined. A value that
gets a buffer is not necessarily stored: fusion joins its producer with the readers, and computes it once. Rules are
tried in order; the first that applies names the reason. Needs: nodes in order, without dead ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind
from kiln.loops.lowering.column import ELEMENT
from kiln.loops.lowering.updates import THROUGH_STORAGE, Updates
from kiln.support.records import dataclass
from kiln.symbolic import Int, is_static
from kiln.tensor.spec import TensorSpec

EXPENSIVE = 4
"""Arithmetic per element from which computing a value again costs more than a load."""
VERY_EXPENSIVE = 24
"""The same for a value that is computed once per row."""
MAX_DEPTH = 64
"""Longest chain of inlined ops: limits the size of bodies and the depth of recursion."""
MOST_LOADS = 64
"""Tensors that one body reads, small ones aside: the same for trees of ops."""
BY_DATA = frozenset({"gather", "index"})
MASKING = frozenset({"cat", "pad", "select_scatter", "slice_scatter", "diagonal_scatter"})
MOST_COPIES = 64
"""Counting of evaluations stops here."""
MASK_COST = 2
"""Arithmetic of choosing between two inputs by the index."""
LONG_ROW = 16
"""A row of so many elements pays for computing once per row what does not change along it."""
SMALL = 1024
"""A broadcast operand of at most so many elements stays in the nearest cache: reading it is free."""


class Repeats(IntEnum):
    """How often a reader evaluates an element: once; once per row, outside of the inner loop; many times."""

    NEVER = 0
    IN_ROW = 1
    ANYWHERE = 2


@final
@dataclass(slots=True)
class Use:
    """How a value is used, collected from its users (which come later and are decided already)."""

    readers: set[Node] = field(default_factory=set)  # up to two: more than one is what matters
    at_own_index: int = 0  # evaluations in one body, by users that need it at their own index
    elsewhere: int = 0  # the same for users that move it
    in_memory: bool = False  # a call, an output or a write needs a tensor
    repeated: Repeats = Repeats.NEVER
    masked: bool = False  # evaluated only where a mask holds

    @property
    def copies(self) -> int:
        """How often one body would compute it."""
        return max(1, min(self.at_own_index + self.elsewhere, MOST_COPIES))


@final
@dataclass(frozen=True, slots=True)
class Cost:
    """Of computing one element when everything below with a single user is inlined.

    `spread`: neighbours are read from one place, as in `x.repeat_interleave(4)`; a vector would be put together.
    `same_along`: so many of the last dimensions make no difference. `once_per_row`: these are a long row, along which a
    loop computes the value once. `from_index`: it reads no memory, on a GPU, where a load of what another kernel made
    takes longer than some arithmetic; it does not count in what is computed from it and from memory.
    """

    flops: int = 0
    loads: int = 0
    depth: int = 0
    indirect: bool = False
    spread: bool = False
    same_along: int = 0
    once_per_row: bool = False
    from_index: bool = False

    @property
    def exceeds_a_load(self) -> bool:
        return self.flops >= (VERY_EXPENSIVE if self.from_index else EXPENSIVE)

    @property
    def is_free(self) -> bool:
        return self.once_per_row and self.flops < VERY_EXPENSIVE


@final
@dataclass(frozen=True, slots=True)
class RealiseRule:
    """A value gets a buffer because of `name`, when `applies`."""

    name: str
    applies: Callable[[Node, Use, Cost], bool]


def is_shared(use: Use, cost: Cost) -> bool:
    """Whether several loops would compute it for each of their elements."""
    return len(use.readers) > 1 and not cost.is_free


def is_copied(use: Use, cost: Cost) -> bool:
    """Whether one body would compute it so often that a load is faster."""
    return not cost.from_index and (use.copies - 1) * cost.flops >= VERY_EXPENSIVE


# Absent on purpose: "is large". A value with one reader is never stored, however large.
REALISE_RULES = (
    RealiseRule("in_memory", lambda node, use, cost: use.in_memory),
    RealiseRule("deep", lambda node, use, cost: cost.depth >= MAX_DEPTH),
    RealiseRule("wide", lambda node, use, cost: cost.loads >= MOST_LOADS),
    RealiseRule("indirect_under_mask", lambda node, use, cost: use.masked and cost.indirect),
    RealiseRule("spread", lambda node, use, cost: use.repeated is Repeats.ANYWHERE and cost.spread),
    RealiseRule("repeated", lambda node, use, cost: use.repeated is Repeats.ANYWHERE and cost.exceeds_a_load),
    RealiseRule(
        "repeated_in_row", lambda node, use, cost: use.repeated is Repeats.IN_ROW and cost.flops >= VERY_EXPENSIVE
    ),
    RealiseRule("pieces", lambda node, use, cost: node.op.name == "cat" and cost.flops >= VERY_EXPENSIVE),
    RealiseRule("many_copies", lambda node, use, cost: is_copied(use, cost)),
    RealiseRule("shared_work", lambda node, use, cost: is_shared(use, cost) and cost.exceeds_a_load),
    RealiseRule("shared_reads", lambda node, use, cost: is_shared(use, cost) and cost.loads > 1),
    RealiseRule("shared_gather", lambda node, use, cost: len(use.readers) > 1 and cost.indirect),
)


OVERWRITTEN = "before_update"
"""The rule by which a value gets a buffer because what it is computed from is overwritten."""


def choose_realised(
    graph: Graph, nodes: Sequence[Node], calls: frozenset[Node] = frozenset(), updates: Updates | None = None
) -> dict[Node, str]:
    """The nodes with element rules that get a buffer, with the name of the rule.

    `calls` are left to ATen. `updates` have the memory of another node, and read their inputs where they stand.
    """
    updates = updates or Updates()
    inlinable = {
        node for node in nodes if node not in calls and node not in updates and ELEMENT.get(node.op.name) is not None
    }
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
        if inlined and node in updates.kept:
            realised[node] = OVERWRITTEN
            inlined = False
        elif inlined and not is_view:
            rule = next((rule for rule in REALISE_RULES if rule.applies(node, use, costs[node])), None)
            if rule is not None:
                realised[node] = rule.name
                inlined = False
        in_loops = node in inlinable or node in updates or (node not in calls and node.op.kind in LOOPS)
        _pass_on(node, use, inlined, in_loops, uses)
    return realised


LOOPS = frozenset({Kind.REDUCTION, Kind.SCAN, Kind.SCATTER})


def _pass_on(node: Node, use: Use, inlined: bool, in_loops: bool, uses: dict[Node, Use]) -> None:
    """Note in the uses of the inputs how `node` uses them."""
    name = node.op.name
    for position, operand in enumerate(node.inputs):
        below = uses.get(operand)
        if below is None:
            continue
        if len(below.readers) < 2:
            below.readers |= use.readers if inlined else {node}
        copies = use.copies if inlined else 1
        # Users at the same index share one evaluation; one that moves its input needs another.
        if node.op.kind is Kind.POINTWISE or node.op.kind is Kind.REDUCTION:
            below.at_own_index = max(below.at_own_index, copies)
        else:
            below.elsewhere = min(below.elsewhere + copies, MOST_COPIES)
        repeats = _repeats(node, position)
        below.repeated = max(below.repeated, repeats, use.repeated if inlined else Repeats.NEVER)
        below.masked |= (inlined and use.masked) or name in MASKING
        below.in_memory |= not in_loops or (use.in_memory and node.op.kind is Kind.VIEW) or name in THROUGH_STORAGE


def _repeats(node: Node, position: int) -> Repeats:
    """How often does `node` need an element of input number `position`?"""
    name, result, operand = node.op.name, node.spec, node.inputs[position].spec
    if not isinstance(result, TensorSpec) or not isinstance(operand, TensorSpec):
        return Repeats.NEVER
    if name in BY_DATA:
        # Indices are the same along what follows the picked dimensions.
        follows = name == "index" and position > 0 and node.attrs["axes"][0] + operand.rank < result.rank
        return Repeats.IN_ROW if follows else Repeats.NEVER if name == "gather" and position else Repeats.ANYWHERE
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
    users = Counter(operand for node in nodes for operand in node.inputs)
    costs: dict[Node, Cost] = {}
    for node in nodes:
        if node in inlinable:
            costs[node] = _cost(node, costs, users)
    return costs


def _cost(node: Node, costs: dict[Node, Cost], users: Mapping[Node, int]) -> Cost:
    flops = 0 if node.op.kind is Kind.CREATE else node.op.flops  # an index is a counter of a loop
    loads, depth, indirect, spread = 0, 0, node.op.name in BY_DATA, _spreads(node)
    same_along = _same_along(node, costs)
    once_per_row = _is_long_row(node.tensor.sizes[node.tensor.rank - same_along :])
    from_index = _is_from_index(node, costs)
    if node.op.name in MASKING:
        flops += MASK_COST * (len(node.inputs) - 1)
    for operand in node.inputs:
        cost = costs.get(operand)
        if cost is None:
            loads += _is_worth_a_load(operand)
            continue
        # A value with several users and work in it has a buffer of its own, unless they are in one loop: so its depth
        # counts until it is stored for that.
        depth = max(depth, cost.depth if cost.depth < MAX_DEPTH else 0)
        shared = users[operand] > 1 and (cost.exceeds_a_load or cost.loads > 1)
        if shared or cost.depth >= MAX_DEPTH or cost.loads >= MOST_LOADS:
            loads += _is_worth_a_load(operand)
        else:
            if from_index or not (cost.from_index or (cost.is_free and not once_per_row)):
                flops, loads = flops + cost.flops, loads + cost.loads
            indirect, spread = indirect or cost.indirect, spread or cost.spread
    return Cost(flops, loads, depth + 1, indirect, spread, same_along, once_per_row, from_index)


def _is_from_index(node: Node, costs: Mapping[Node, Cost]) -> bool:
    if node.op.kind is Kind.CREATE and not node.inputs:
        return True
    if node.tensor.device.type == "cpu" or node.op.kind not in (Kind.CREATE, Kind.POINTWISE, Kind.VIEW):
        return False
    return all(operand in costs and costs[operand].from_index for operand in node.inputs)


def _same_along(node: Node, costs: Mapping[Node, Cost]) -> int:
    """How many of the last dimensions make no difference to what a pointwise op or a broadcast gives."""
    rank = node.tensor.rank
    if node.op.kind is not Kind.POINTWISE and node.op.name != "expand":
        return rank if node.op.name == "full" else 0
    same = rank
    for operand in node.inputs:
        if operand.tensor.numel() == 1:
            continue
        own = costs[operand].same_along if operand in costs else 0
        sizes, wanted = operand.tensor.sizes[::-1], node.tensor.sizes[::-1]
        same = min(same, next((k for k in range(own, len(sizes)) if not (sizes[k] == 1 != wanted[k])), rank))
    return same


def _is_long_row(sizes: Sequence[Int]) -> bool:
    count: Int = 1
    for size in sizes:
        count = count * size
    return bool(sizes) and is_static(count) and count >= LONG_ROW


def _spreads(node: Node) -> bool:
    """Does it merge a dimension along which elements are repeated into one along which they differ?"""
    if node.op.name != "reshape":
        return False
    (operand,) = node.inputs
    return operand.op.name == "expand" and operand.tensor.strides[-1] == 0


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
