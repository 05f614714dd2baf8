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

from collections.abc import Callable, Iterable, Mapping
from typing import cast, final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import all_nodes, nested_graphs
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, Symbol, product, sym_max
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


# Arithmetic.


def node_flops(node: Node) -> Int:
    if node.op.kind is Kind.NESTED:
        total: Int = 0
        for graph in nested_graphs(node):
            for inner in graph.nodes:
                total = total + node_flops(inner)
        return total
    if node.op.kind is Kind.LIBRARY:
        rule = LIBRARY_FLOPS.get(target_of(node))
        return rule(node) if rule is not None else 0
    points = node.inputs[0].spec if node.op.kind in (Kind.REDUCTION, Kind.SCAN) else node.spec
    return numel(points) * node.op.flops


def operands(node: Node) -> list[TensorSpec]:
    """The tensors that a library call takes, in order; one that it takes twice is one input of the node."""
    args, _ = node_arguments(node, node.inputs)
    return [argument.tensor for argument in args if isinstance(argument, Node)]


def target_of(node: Node) -> str:
    return str(node.attrs["target"]).removeprefix("aten.")


def numel(spec: Spec | None) -> Int:
    return product(spec.sizes) if isinstance(spec, TensorSpec) else 0


def of_product(node: Node) -> Int:
    """Each element of the result is a sum over the last dimension of the left matrix."""
    left = operands(node)[-2]
    return 2 * numel(node.spec) * left.sizes[-1]


def of_convolution(node: Node) -> Int:
    """Each element of the result is a sum over a filter; transposed, each of the input."""
    weight = operands(node)[1]
    transposed = bool(node.attrs["args"][6])
    points = node.inputs[0].spec if transposed else node.spec
    return 2 * numel(points) * product(weight.sizes[1:])


def of_dot(node: Node) -> Int:
    return 2 * numel(node.inputs[0].spec)


def of_convolution_backward(node: Node) -> Int:
    """The gradients of input and weight take as much as the convolution; that of the bias is a sum."""
    args = cast(tuple[object, ...], node.attrs["args"])
    gradient, given, weight = operands(node)[:3]
    transposed, wanted = bool(args[7]), cast(tuple[bool, ...], args[10])
    points = numel(given if transposed else gradient)
    return 2 * points * product(weight.sizes[1:]) * sum(wanted[:2]) + numel(gradient) * wanted[2]


def of_attention(node: Node) -> Int:
    """Two products per head; the softmax between them is not counted."""
    query, key, value = [each.sizes for each in operands(node)[:3]]
    return 2 * product(query[:-1]) * key[-2] * (query[-1] + value[-1])


def of_attention_backward(node: Node) -> Int:
    """Five products per head: the scores again, and for the gradients of scores, query, key and value."""
    query, key, value = [each.sizes for each in operands(node)[1:4]]
    return 2 * product(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
# fmt: off
LIBRARY_FLOPS: dict[str, Callable[[Node], Int]] = {
    "mm.default": of_product, "bmm.default": of_product, "addmm.default": of_product, "baddbmm.default": of_product,
    "mv.default": of_product, "addmv.default": of_product, "convolution.default": of_convolution,
    "convolution_backward.default": of_convolution_backward, "dot.default": of_dot, "vdot.default": of_dot,
    **{f"_scaled_dot_product_{name}.default": of_attention for name in ATTENTION},
    **{f"_scaled_dot_product_{name}_backward.default": of_attention_backward for name in ATTENTION},
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
