"""What a program costs, as formulas in its symbols: arithmetic, bytes moved, peak memory.

    cost = analyze_graph(program.graph)
    cost.flops              2*batch*768*3072 + ...
    cost.bytes              read and written by all ops, each on its own; views move nothing
    cost.peak_memory        bytes that live at once: inputs, parameters, intermediate values, results

Each op is counted as eager runs it, without fusion. Products of matrices and convolutions count two operations per
multiplication and addition; other ops what the table of primitives says, per element. Of two sums that neither
exceeds the other for all sizes, the peak is their maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.prims.table import Kind
from kiln.symbolic import Expr, Int, product, sym_max
from kiln.symbolic.expr import terms_of
from kiln.tensor.spec import Spec, TensorSpec

LARGEST_MAXIMUM = 8
"""Sums in the maximum of a peak; the others are left out where their coefficients are smaller in total."""


@final
@dataclass(frozen=True, slots=True)
class ProgramCost:
    """Formulas over the symbols of a graph's inputs, and what the sizes must satisfy."""

    flops: Int
    bytes: Int
    peak_memory: Int
    constraints: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [f"flops        {self.flops}", f"bytes        {self.bytes}", f"peak memory  {self.peak_memory}"]
        return "\n".join([*rows, *[f"needs        {line}" for line in self.constraints]])


def analyze_graph(graph: Graph) -> ProgramCost:
    """The cost of running a graph op by op."""
    flops: Int = 0
    moved: Int = 0
    for node in graph.nodes:
        flops = flops + node_flops(node)
        if node.op.kind not in (Kind.VIEW, Kind.STRUCTURE):
            moved = moved + sum((size_of(value.spec) for value in node.inputs), size_of(node.spec))
    return ProgramCost(flops, moved, peak_memory(graph))


# Arithmetic.


def node_flops(node: Node) -> Int:
    if node.op.kind is Kind.NESTED:
        inner = [node_flops(each) for value in node.attrs.values() if isinstance(value, Graph) for each in value.nodes]
        total: Int = 0
        for flops in inner:
            total = total + flops
        return total
    if node.op.kind is Kind.LIBRARY:
        rule = LIBRARY_FLOPS.get(str(node.attrs["target"]).removeprefix("aten."))
        return rule(node) if rule is not None else 0
    points = node.inputs[0].spec if node.op.kind in (Kind.REDUCTION, Kind.SCAN) else node.spec
    return numel(points) * node.op.flops


def numel(spec: Spec | None) -> Int:
    return product(spec.sizes) if isinstance(spec, TensorSpec) else 0


def of_product(node: Node) -> Int:
    """Each element of the result is a sum over the last dimension of the left matrix."""
    left = node.inputs[-2].tensor
    return 2 * numel(node.spec) * left.sizes[-1]


def of_convolution(node: Node) -> Int:
    """Each element of the result is a sum over a filter; transposed, each of the input."""
    weight = node.inputs[1].tensor
    transposed = bool(node.attrs["args"][6])
    points = node.inputs[0].spec if transposed else node.spec
    return 2 * numel(points) * product(weight.sizes[1:])


def of_attention(node: Node) -> Int:
    """Two products per head; the softmax between them is not counted."""
    query, key, value = [each.tensor.sizes for each in node.inputs[:3]]
    return 2 * product(query[:-1]) * key[-2] * (query[-1] + value[-1])


# fmt: off
LIBRARY_FLOPS: dict[str, Callable[[Node], Int]] = {
    "mm.default": of_product, "bmm.default": of_product, "addmm.default": of_product, "baddbmm.default": of_product,
    "mv.default": of_product, "addmv.default": of_product, "convolution.default": of_convolution,
    "_scaled_dot_product_flash_attention_for_cpu.default": of_attention,
    "_scaled_dot_product_flash_attention.default": of_attention,
    "_scaled_dot_product_efficient_attention.default": of_attention,
}
# fmt: on


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


def peak_memory(graph: Graph) -> Int:
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
    return maximum(sums)


def maximum(sums: Iterable[Int]) -> Int:
    """The maximum, of sums that no other exceeds for all sizes."""
    kept: list[Int] = []
    for candidate in sums:
        if not any(exceeds(other, candidate) for other in kept):
            kept = [other for other in kept if not exceeds(candidate, other)] + [candidate]
    kept.sort(key=lambda total: sum(coefficient for _, coefficient in terms_of(total)), reverse=True)
    result = kept[0]
    for candidate in kept[1:LARGEST_MAXIMUM]:
        result = sym_max(result, candidate)
    return result


def exceeds(left: Int, right: Int) -> bool:
    """Whether `left >= right` is plain from the coefficients, for sizes of at least 1."""
    difference = left - right
    if isinstance(difference, Expr):
        difference = difference.substitute({size: size + 1 for size in difference.free_symbols()})
    return all(coefficient >= 0 for _, coefficient in terms_of(difference))
