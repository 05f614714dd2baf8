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
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.prims.spec import TensorSpec
from kiln.graph.prims.table import Kind
from kiln.loops.lowering.column import ELEMENT
from kiln.symbolic import is_static

EXPENSIVE = 4
"""Arithmetic cost per element from which computing a value once more costs more than a load."""
MAX_DEPTH = 64
"""Longest chain of inlined ops: bounds the size of bodies and the depth of recursion."""
THROUGH_STORAGE = frozenset({"as_strided", "view_dtype"})
"""Views that need the memory of what they look at."""
BY_DATA = frozenset({"gather", "index"})
MASKING = frozenset({"cat", "pad", "select_scatter", "slice_scatter", "diagonal_scatter"})
SMALL = 1024
"""A broadcast operand of at most so many elements stays in the nearest cache: reading it is free."""


@final
@dataclass(slots=True)
class Use:
    """What is known of a value's uses, collected from its users (which stand later and are decided already)."""

    readers: set[Node] = field(default_factory=set)
    in_memory: bool = False  # a call, an output or a write needs a tensor
    repeated: bool = False  # an element may be evaluated more than once by a reader
    masked: bool = False  # evaluated only where a mask holds


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
    Rule("indirect_under_mask", lambda node, use, cost: use.masked and cost.indirect),
    Rule("repeated", lambda node, use, cost: use.repeated and cost.flops >= EXPENSIVE),
    Rule("shared_work", lambda node, use, cost: len(use.readers) > 1 and cost.flops >= EXPENSIVE),
    Rule("shared_reads", lambda node, use, cost: len(use.readers) > 1 and cost.loads > 1),
    Rule("shared_gather", lambda node, use, cost: len(use.readers) > 1 and cost.indirect),
)


def choose_realised(graph: Graph, nodes: Sequence[Node]) -> dict[Node, str]:
    """The nodes with element rules that get a buffer, with the name of the rule."""
    costs = _costs(nodes)
    uses: dict[Node, Use] = {node: Use() for node in nodes}
    for root in graph.roots():
        if root in uses:
            # A root is its own reader: the caller.
            uses[root].in_memory = True
    realised: dict[Node, str] = {}
    for node in reversed(nodes):
        use = uses[node]
        is_view = node.op.kind is Kind.VIEW
        inlined = ELEMENT.get(node.op.name) is not None
        if inlined and not is_view:
            rule = next((rule for rule in RULES if rule.applies(node, use, costs[node])), None)
            if rule is not None:
                realised[node] = rule.name
                inlined = False
        _pass_on(node, use, inlined, uses)
    return realised


def _pass_on(node: Node, use: Use, inlined: bool, uses: dict[Node, Use]) -> None:
    """Tell the inputs of `node` how they are used."""
    name = node.op.name
    needs_memory = ELEMENT.get(name) is None and node.op.kind not in (Kind.REDUCTION, Kind.SCAN, Kind.SCATTER)
    for place, one in enumerate(node.inputs):
        below = uses.get(one)
        if below is None:
            continue
        below.readers |= use.readers if inlined else {node}
        below.repeated |= (inlined and use.repeated) or _repeats(node, place)
        below.masked |= (inlined and use.masked) or name in MASKING
        below.in_memory |= needs_memory or (use.in_memory and node.op.kind is Kind.VIEW) or name in THROUGH_STORAGE


def _repeats(node: Node, place: int) -> bool:
    """May `node` ask for an element of input `place` more than once?"""
    if node.op.name in BY_DATA:
        return place == 0 or node.op.name == "index"
    if node.op.kind is Kind.POINTWISE or node.op.name in ("expand", "unfold"):
        return _is_larger(node.tensor, node.inputs[place].tensor)
    return False


def _is_larger(result: TensorSpec, operand: TensorSpec) -> bool:
    if result.sizes == operand.sizes:
        return False
    large, small = result.numel(), operand.numel()
    return not (is_static(large) and is_static(small) and large <= small)


def _costs(nodes: Sequence[Node]) -> dict[Node, Cost]:
    users: dict[Node, int] = dict.fromkeys(nodes, 0)
    for node in nodes:
        for one in node.inputs:
            if one in users:
                users[one] += 1
    costs: dict[Node, Cost] = {}
    for node in nodes:
        costs[node] = Cost() if ELEMENT.get(node.op.name) is None else _cost(node, costs, users)
    return costs


def _cost(node: Node, costs: dict[Node, Cost], users: dict[Node, int]) -> Cost:
    flops, loads, depth, indirect = node.op.flops, 0, 0, node.op.name in BY_DATA
    for one in node.inputs:
        cost = costs.get(one)
        stored = cost is None or ELEMENT.get(one.op.name) is None
        if cost is None or stored:
            loads += _is_worth_a_load(one)
            continue
        depth = max(depth, cost.depth)
        # What has several users and work in it will have a buffer of its own.
        if users[one] > 1 and (cost.flops >= EXPENSIVE or cost.loads > 1):
            loads += _is_worth_a_load(one)
        else:
            flops, loads, indirect = flops + cost.flops, loads + cost.loads, indirect or cost.indirect
    return Cost(flops, loads, depth + 1, indirect)


def _is_worth_a_load(node: Node) -> bool:
    if not isinstance(node.spec, TensorSpec):
        return False
    numel = node.spec.numel()
    return not (is_static(numel) and numel <= SMALL)


def reachable(graph: Graph) -> Iterator[Node]:
    """The nodes that outputs, writes and effects need, in order."""
    needed: set[Node] = {output.value for output in graph.outputs if output.alias is None}
    needed.update(write.value for write in graph.writes)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node in needed or node.op.kind is Kind.EFFECT:
            kept.append(node)
            needed.update(node.inputs)
    return reversed(kept)
