"""What a program costs, as formulas in its symbols: arithmetic, bytes moved, peak memory.

    cost = analyze_graph(program.graph)
    cost.flops              2*batch*768*3072 + ...
    cost.bytes              read and written by all ops, each on its own; views move nothing
    cost.peak_memory        bytes that live at once: inputs, parameters, intermediate values, results

Each op is counted as eager runs it, without fusion. Products of matrices and convolutions count two operations per
multiplication and addition; other ops what the table of primitives says, per element. Library calls without a row here
count nothing, and are named. Of two sums that neither exceeds the other for all sizes, the peak is their maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from kiln.graph.ir.flops import LIBRARY_FLOPS, node_flops, numel, target_of
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import all_nodes
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, Symbol, sym_max
from kiln.symbolic.expr import terms_of
from kiln.tensor.spec import Spec, TensorSpec

Least = Mapping[Symbol, int]
"""The least value of symbols; 0 for others."""


@final
@dataclass(frozen=True, slots=True)
class ProgramCost:
    """Formulas over the symbols of a graph's inputs, and what the sizes must satisfy.

    `uncounted`: library calls whose arithmetic `flops` leaves out.
    """

    flops: Int
    bytes: Int
    peak_memory: Int
    constraints: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [f"flops        {self.flops}", f"bytes        {self.bytes}", f"peak memory  {self.peak_memory}"]
        if self.uncounted:
            rows.insert(1, f"             without {', '.join(self.uncounted)}")
        return "\n".join([*rows, *[f"needs        {line}" for line in self.constraints]])


def analyze_graph(graph: Graph, least: Least | None = None) -> ProgramCost:
    """The cost of running a graph op by op."""
    flops: Int = 0
    moved: Int = 0
    for node in graph.nodes:
        flops = flops + node_flops(node)
        if node.op.kind not in (Kind.VIEW, Kind.STRUCTURE):
            moved = moved + sum((size_of(value.spec) for value in node.inputs), size_of(node.spec))
    calls = {target_of(node) for node in all_nodes(graph) if node.op.kind is Kind.LIBRARY}
    uncounted = sorted(call for call in calls if call not in LIBRARY_FLOPS)
    return ProgramCost(flops, moved, peak_memory(graph, least or {}), uncounted=tuple(uncounted))


# Memory.


def size_of(spec: Spec | None) -> Int:
    """Bytes of the elements of a value."""
    if isinstance(spec, tuple):
        total: Int = 0
        for part in spec:
            total = total + size_of(part)
        return total
    return numel(spec) * spec.dtype.itemsize if isinstance(spec, TensorSpec) else 0


def owner(node: Node) -> Node:
    """The value whose memory a value is: through views and items."""
    base = base_of(node)
    while base.op.name == "item":
        base = base_of(base.inputs[0])
    return base


def peak_memory(graph: Graph, least: Least) -> Int:
    """The largest sum of the values that live at once; inputs and results live to the end."""
    last: dict[Node, int] = {}
    for number, node in enumerate(graph.nodes):
        for value in (node, *node.inputs):
            last[owner(value)] = number
    kept = {owner(value) for value in graph.roots()} | set(graph.inputs)
    dying: dict[int, list[Node]] = {}
    for node, number in last.items():
        if node not in kept:
            dying.setdefault(number, []).append(node)
    now: Int = 0
    for node in graph.inputs:
        now = now + size_of(node.spec)
    sums: list[Int] = [now]
    for number, node in enumerate(graph.nodes):
        if owner(node) is node:
            now = now + size_of(node.spec)
            sums.append(now)
        for dead in dying.get(number, ()):
            now = now - size_of(dead.spec)
    return maximum(sums, least)


def maximum(sums: Iterable[Int], least: Least) -> Int:
    """The maximum, of sums that no other exceeds for all sizes."""
    kept: list[Int] = []
    for candidate in sums:
        if not any(exceeds(other, candidate, least) for other in kept):
            kept = [other for other in kept if not exceeds(candidate, other, least)] + [candidate]
    result = kept[0]
    for candidate in kept[1:]:
        result = sym_max(result, candidate)
    return result


def exceeds(left: Int, right: Int, least: Least) -> bool:
    """Whether `left >= right` is plain from the coefficients, for sizes of at least `least`."""
    difference = left - right
    if isinstance(difference, Expr):
        difference = difference.substitute({size: size + least.get(size, 0) for size in difference.free_symbols()})
    return all(coefficient >= 0 for _, coefficient in terms_of(difference))
