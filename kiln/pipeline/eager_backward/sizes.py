"""Graphs of one backward for other sizes: two of them give one with symbols, which later ones are compared with.

    first                                   second                                  both, with s0 = 8, then 12
    %2: f32[8, 4] = expand(%0, (8, 4))      %2: f32[12, 4] = expand(%0, (12, 4))    %2: f32[s0, 4] = expand(%0, (s0, 4))
    %3: f32[] = constant(value=32.0)        %3: f32[] = constant(value=48.0)        %3: an input more

Autograd's nodes hold numbers, so a backward is recorded for each new set of sizes. Which formula a number has is
guessed from two recordings. A guess is never trusted: a graph with symbols is used where the recording for the present
sizes is exactly that graph with numbers in the place of its symbols. So a new set of sizes costs a recording, not a
compile. Constants that differ become inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import torch

from kiln.graph.ir.graph import Alias, Graph, Output
from kiln.graph.ir.node import Attr, Node
from kiln.graph.prims.rows import PRIMS
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, ShapeEnv, Symbol, evaluate
from kiln.tensor.spec import Spec, TensorSpec


class NotAlike(Exception):
    """Two graphs differ in more than sizes."""


@final
@dataclass(frozen=True, slots=True)
class SymbolicGraph:
    """`constants`: for each input behind those of a recording the number of the constant that it replaces."""

    graph: Graph
    constants: tuple[int, ...]

    def values_in(self, graph: Graph) -> list[torch.Tensor] | None:
        """The constants of `graph`, if it is this graph for its sizes."""
        try:
            return _Instance(self).check(graph)
        except NotAlike:
            return None


def with_symbols(first: Graph, second: Graph) -> SymbolicGraph | None:
    """The graph of which both are instances; None where no formula fits."""
    try:
        return _Generaliser().graph(first, second)
    except NotAlike:
        return None


def require_alike(condition: object) -> None:
    if not condition:
        raise NotAlike


def check_shape(first: Graph, second: Graph) -> None:
    """That both have the same ops on the same values, in the same order."""
    require_alike(len(first.nodes) == len(second.nodes) and len(first.outputs) == len(second.outputs))
    require_alike(len(first.inputs) == len(second.inputs) and not (first.writes or second.writes))
    numbers = [numbering(first), numbering(second)]
    for left, right in zip(first.nodes, second.nodes, strict=True):
        require_alike(left.op is right.op and left.attrs.keys() == right.attrs.keys())
        read = [[table[value] for value in node.inputs] for node, table in zip((left, right), numbers, strict=True)]
        require_alike(read[0] == read[1])
    for result, twin in zip(first.outputs, second.outputs, strict=True):
        require_alike(numbers[0][result.value] == numbers[1][twin.value])


def numbering(graph: Graph) -> dict[Node, int]:
    return {node: number for number, node in enumerate((*graph.inputs, *graph.nodes))}


def is_constant(node: Node) -> bool:
    return node.op.name == "constant" and isinstance(node.attrs["value"], int | float)


@final
class _Generaliser:
    """Sizes that differ, and the symbols for them."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.symbols: dict[tuple[int, int], Int] = {}

    def graph(self, first: Graph, second: Graph) -> SymbolicGraph:
        check_shape(first, second)
        for left, right in zip(first.inputs, second.inputs, strict=True):
            self.add_symbols(left.tensor, right.tensor)
        new: dict[Node, Node] = {}
        for left, right in zip(first.inputs, second.inputs, strict=True):
            new[left] = Node(left.op, (), left.attrs, self.spec(left.spec, right.spec), left.origin)
        inputs = [new[node] for node in first.inputs]
        nodes: list[Node] = []
        constants: list[int] = []
        for number, (left, right) in enumerate(zip(first.nodes, second.nodes, strict=True)):
            if is_constant(left) and left.attrs["value"] != right.attrs["value"]:
                require_alike(left.spec == right.spec)
                made = Node(PRIMS["input"], (), {"index": len(inputs), "name": f"constant_{number}"}, left.spec)
                inputs.append(made)
                constants.append(number)
            else:
                attrs = {name: cast(Attr, self.value(value, right.attrs[name])) for name, value in left.attrs.items()}
                operands = tuple([new[value] for value in left.inputs])
                made = Node(left.op, operands, attrs, self.spec(left.spec, right.spec), left.origin)
                nodes.append(made)
            new[left] = made
        outputs = [
            Output(new[left.value], self.alias(left.alias, right.alias))
            for left, right in zip(first.outputs, second.outputs, strict=True)
        ]
        return SymbolicGraph(Graph(tuple(inputs), nodes, tuple(outputs), (), first.name), tuple(constants))

    def add_symbols(self, left: TensorSpec, right: TensorSpec) -> None:
        require_alike(left.rank == right.rank)
        for pair in zip(cast(Sequence[int], left.sizes), cast(Sequence[int], right.sizes), strict=True):
            if pair[0] != pair[1] and pair not in self.symbols:
                require_alike(min(pair) > 1)  # of size 1, eager computes right strides
                self.symbols[pair] = self.env.create_symbol(pair[0])

    def number(self, left: int, right: int) -> Int:
        if left == right:
            return left
        for (a, b), symbol in self.symbols.items():
            if left % a == 0 and right % b == 0 and left // a == right // b:
                return symbol * (left // a)
        for (a, b), symbol in self.symbols.items():
            for (c, d), factor in self.symbols.items():
                if left % (a * c) == 0 and right % (b * d) == 0 and left // (a * c) == right // (b * d):
                    return symbol * factor * (left // (a * c))
        for (a, b), symbol in self.symbols.items():
            if left - a == right - b:
                return symbol + (left - a)
        raise NotAlike

    def value(self, left: object, right: object) -> object:
        require_alike(type(left) is type(right))
        if type(left) is int:
            return self.number(left, cast(int, right))
        if isinstance(left, tuple):
            require_alike(len(left) == len(cast(tuple[object, ...], right)))
            return tuple([self.value(*pair) for pair in zip(left, cast(tuple[object, ...], right), strict=True)])
        require_alike(left == right)
        return left

    def spec(self, left: Spec | None, right: Spec | None) -> Spec:
        if isinstance(left, tuple) and isinstance(right, tuple):
            return cast(Spec, tuple([self.spec(*pair) for pair in zip(left, right, strict=True)]))
        require_alike(isinstance(left, TensorSpec) and isinstance(right, TensorSpec))
        left, right = cast(TensorSpec, left), cast(TensorSpec, right)
        require_alike((left.dtype, left.device) == (right.dtype, right.device))
        sizes, strides = self.value(left.sizes, right.sizes), self.value(left.strides, right.strides)
        offset = self.value(left.offset, right.offset)
        return left.with_view(cast(tuple[Int, ...], sizes), cast(tuple[Int, ...], strides), cast(Int, offset))

    def alias(self, left: Alias | None, right: Alias | None) -> Alias | None:
        if left is None or right is None:
            require_alike(left is right)
            return None
        require_alike((left.of, left.index, left.view is None) == (right.of, right.index, right.view is None))
        view = None if left.view is None else cast(TensorSpec, self.spec(left.view, right.view))
        return Alias(left.of, left.index, view)


@final
class _Instance:
    """A graph with symbols beside a recording: which numbers the symbols have."""

    def __init__(self, symbolic: SymbolicGraph) -> None:
        self.symbolic = symbolic
        self.sizes: dict[Symbol, int] = {}

    def check(self, graph: Graph) -> list[torch.Tensor]:
        made = self.symbolic.graph
        constants = dict(zip(self.symbolic.constants, made.inputs[len(graph.inputs) :], strict=True))
        require_alike(len(made.nodes) + len(constants) == len(graph.nodes))
        twins: dict[Node, Node] = dict(zip(graph.inputs, made.inputs, strict=False))
        require_alike(len(twins) + len(constants) == len(made.inputs))
        for node, twin in twins.items():
            self.bind(node.tensor, twin.tensor)
        found: list[torch.Tensor] = []
        nodes = iter(made.nodes)
        for number, node in enumerate(graph.nodes):
            twin = constants[number] if number in constants else next(nodes)
            self.same(node.spec, twin.spec)
            if number in constants:
                require_alike(is_constant(node))
                spec = node.tensor
                found.append(torch.tensor(node.attrs["value"], dtype=spec.dtype, device=spec.device))
            else:
                require_alike(node.op is twin.op and node.attrs.keys() == twin.attrs.keys())
                require_alike([twins[value] for value in node.inputs] == list(twin.inputs))
                self.same(tuple(node.attrs.values()), tuple([twin.attrs[name] for name in node.attrs]))
            twins[node] = twin
        require_alike(len(graph.outputs) == len(made.outputs))
        for result, twin_result in zip(graph.outputs, made.outputs, strict=True):
            require_alike(twins[result.value] is twin_result.value)
            self.same_alias(result.alias, twin_result.alias)
        return found

    def bind(self, left: TensorSpec, twin: TensorSpec) -> None:
        require_alike(left.rank == twin.rank)
        for size, expr in zip(cast(Sequence[int], left.sizes), twin.sizes, strict=True):
            if isinstance(expr, Symbol):
                require_alike(size > 1)
                self.sizes.setdefault(expr, size)
        self.same(left, twin)

    def same(self, left: object, twin: object) -> None:
        if isinstance(twin, Expr):
            require_alike(type(left) is int and all(size in self.sizes for size in twin.free_symbols()))
            require_alike(evaluate(twin, self.sizes) == left)
        elif isinstance(twin, tuple):
            require_alike(isinstance(left, tuple) and len(left) == len(twin))
            for pair in zip(cast(tuple[object, ...], left), twin, strict=True):
                self.same(*pair)
        elif isinstance(twin, TensorSpec):
            require_alike(isinstance(left, TensorSpec))
            spec = cast(TensorSpec, left)
            self.same((spec.sizes, spec.strides, spec.offset), (twin.sizes, twin.strides, twin.offset))
            require_alike((spec.dtype, spec.device) == (twin.dtype, twin.device))
        else:
            require_alike(type(left) is type(twin) and left == twin)

    def same_alias(self, left: Alias | None, twin: Alias | None) -> None:
        if left is None or twin is None:
            require_alike(left is twin)
            return
        require_alike((left.of, left.index) == (twin.of, twin.index))
        self.same(left.view, twin.view)
