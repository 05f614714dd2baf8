"""Values that an earlier region has saved are read instead of computed once more.

    defined (the first region)      graph (its gradients)            =>      graph
    graph(%0, %1):                  graph(%0, %1, %2 "tangent"):             graph(%0, %1, %2 "tangent", %3 "saved"):
        %2 = mm(%0, %1)                 %3 = mm(%0, %1)                          %4 = mul(%3, %3)
        %3 = tanh(%2)                   %4 = tanh(%3)                            ...
        return %3                       %5 = mul(%4, %4) ...

Values of two graphs are equal if op, attributes, layout and inputs are: both are numbered by one table. Symbols count
as the sizes of this call. Only values change: the derivatives were recorded on the values that the graph computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.rewrite import rebuilt, with_inputs
from kiln.graph.passes.cse import exact
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import is_random
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Symbol, evaluate
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

Symbols = Mapping[Symbol, int]


@final
@dataclass(frozen=True, slots=True)
class Definitions:
    """How a region's saved values follow from its inputs. `graph` returns those that have a definition; `saved`: the
    number of each among the saved values. `given`: inputs that are a value of an earlier region, and that value."""

    graph: Graph
    saved: tuple[int, ...]
    given: tuple[tuple[int, Node], ...] = ()


@final
@dataclass(slots=True)
class ValueNumbers:
    """Numbers of values, equal for equal ones. `numbers` has those of inputs before nodes are numbered."""

    table: dict[Hashable, int] = field(default_factory=dict)

    def of_input(self, position: int) -> int:
        return self._number(("input", position))

    def of_nodes(self, nodes: Sequence[Node], numbers: dict[Node, int], symbols: Symbols) -> dict[Node, int]:
        """`numbers` of inputs, and those of the nodes."""
        for node in nodes:
            key: Hashable = id(node)
            if node.op.pure and node.op.name != "constant_tensor" and not is_random_call(node):
                attrs = tuple([(name, exact(concrete(value, symbols))) for name, value in node.attrs.items()])
                inputs = [numbers.setdefault(value, self._number(id(value))) for value in node.inputs]
                key = node.op.name, tuple(sorted(inputs) if node.op.commutative else inputs), attrs
            numbers[node] = self._number(key)
        return numbers

    def _number(self, key: Hashable) -> int:
        return self.table.setdefault(key, len(self.table))


def is_random_call(node: Node) -> bool:
    return node.op.kind is Kind.LIBRARY and is_random(node.attrs["target"])


def concrete(value: Attr, symbols: Symbols) -> Attr:
    if isinstance(value, tuple):
        return tuple([concrete(part, symbols) for part in value])
    return evaluate(value, symbols) if isinstance(value, Expr) and value.free_symbols() <= symbols.keys() else value


def symbols_in_call(graph: Graph, values: Sequence[object]) -> dict[Symbol, int]:
    """The sizes, strides and numbers of the inputs `values`."""
    found: dict[Symbol, int] = {}
    for node, value in zip(graph.inputs, values, strict=True):
        spec = node.spec
        pairs: list[tuple[object, object]] = []
        if isinstance(spec, ScalarSpec):
            pairs = [(spec.value, value)]
        elif isinstance(spec, TensorSpec):
            made = value.shape, value.stride(), value.storage_offset()  # type: ignore[attr-defined]
            pairs = list(zip((*spec.sizes, *spec.strides, spec.offset), (*made[0], *made[1], made[2]), strict=True))
        found |= {size: int(number) for size, number in pairs if isinstance(size, Symbol)}  # type: ignore[call-overload]
    return found


def layout(spec: Spec | None, symbols: Symbols) -> Hashable:
    if not isinstance(spec, TensorSpec):
        return None
    return spec.dtype, spec.device, concrete(spec.sizes, symbols), concrete(spec.strides, symbols)


def read_known_values(
    graph: Graph,
    positions: Mapping[Node, int],
    saved: Mapping[int, Node],
    defined: Definitions,
    values: Sequence[object],
) -> tuple[Graph, dict[Node, Node]]:
    """The graph in which nodes are replaced by inputs, and the node that each of its nodes was.

    `positions`: inputs of `graph` that are inputs of the first region. `saved`: inputs that are its saved values.
    `values`: the inputs of the first region in this call.
    """
    table = ValueNumbers()
    symbols = symbols_in_call(defined.graph, values)
    own = {node: table.of_input(number) for number, node in enumerate(defined.graph.inputs)}
    table.of_nodes(defined.graph.nodes, own, symbols)
    inputs = {number: node for node, number in positions.items()}
    known = {own[value]: (inputs[number], value) for number, value in defined.given if number in inputs}
    for output, number in zip(defined.graph.outputs, defined.saved, strict=True):
        if number in saved:
            known.setdefault(own[output.value], (saved[number], output.value))
    numbers = {node: table.of_input(number) for node, number in positions.items()}
    table.of_nodes(graph.nodes, numbers, {})
    replaced: dict[Node, Node] = {}
    before: dict[Node, Node] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        found = known.get(numbers[node])
        if found is not None and layout(found[1].spec, symbols) == layout(node.spec, {}) is not None:
            replaced[node] = found[0]
            before.setdefault(found[0], node)
            continue
        replaced[node] = made = with_inputs(node, tuple([replaced.get(value, value) for value in node.inputs]))
        before[made] = node
        kept.append(made)
    return rebuilt(graph, kept, replaced), before
