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

from kiln.graph.ir.flops import LIBRARY_FLOPS, node_flops, target_of
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import all_nodes
from kiln.graph.prims.table import Kind
from kiln.programs.library_memory import phases_of, size_of
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, Symbol, sym_max
from kiln.symbolic.expr import terms_of

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


Memory = tuple[Node, int]
"""That of a value, or of one of the results of a call."""


def memory_of(node: Node) -> list[Memory]:
    """What keeps the memory of a value alive, through views: of a tuple, of all its parts."""
    base = base_of(node)
    if base.op.name == "item":
        ((call, _),) = memory_of(base.inputs[0])[:1]
        return [(call, base.attrs["index"])]
    return [(base, number) for number in range(len(base.spec))] if isinstance(base.spec, tuple) else [(base, 0)]


def size_in(memory: Memory) -> Int:
    spec = memory[0].spec
    return size_of(spec[memory[1]] if isinstance(spec, tuple) else spec)


def peak_memory(graph: Graph, least: Least) -> Int:
    """The largest sum of the values that live at once; inputs and results live to the end."""
    last: dict[Memory, int] = {}
    for number, node in enumerate(graph.nodes):
        for value in (node, *node.inputs):
            last.update(dict.fromkeys(memory_of(value), number))
    kept = {memory for value in (*graph.roots(), *graph.inputs) for memory in memory_of(value)}
    dying: dict[int, list[Memory]] = {}
    for memory, number in last.items():
        if memory not in kept:
            dying.setdefault(number, []).append(memory)
    now: Int = 0
    for node in graph.inputs:
        now = now + size_of(node.spec)
    sums: list[Int] = [now]
    for number, node in enumerate(graph.nodes):
        sums += [now + bytes_ for bytes_ in phases_of(node)]
        if base_of(node) is node and node.op.name != "item":
            now = now + size_of(node.spec)
            sums.append(now)
        for dead in dying.get(number, ()):
            now = now - size_in(dead)
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
