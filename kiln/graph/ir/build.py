"""Appends nodes in order, with specs from the shape rules.

    b = Builder(oracle)
    x = b.input("x", spec)
    y = b.node("mul", x, b.constant(2.0, torch.float32, CPU))      %1: f32[] = constant(value=2.0, ...)
    graph = b.finish([y])                                          %2: f32[4] = mul(%0, %1)

Equal constants share a node. `origin` is given to each node made while it is set.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch

from kiln.graph.ir.graph import Graph, Output, Write
from kiln.graph.ir.node import Arg, Argument, Attr, Node, Origin
from kiln.graph.prims.meta import META
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Prim
from kiln.symbolic import Expr
from kiln.tensor.spec import SizeOracle, Spec, TensorSpec

Number = int | float | bool | complex

ATEN, CONSTANT, INPUT = PRIMS["aten"], PRIMS["constant"], PRIMS["input"]


class Builder:
    """A growing list of nodes."""

    __slots__ = ("_constants", "inputs", "nodes", "oracle", "origin")

    def __init__(self, oracle: SizeOracle, origin: Origin | None = None) -> None:
        self.oracle = oracle
        self.origin = origin
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []
        self._constants: dict[Hashable, Node] = {}

    def input(self, name: str, spec: Spec) -> Node:
        """The next argument of the graph."""
        made = Node(INPUT, (), {"index": len(self.inputs), "name": name}, spec)
        self.inputs.append(made)
        return made

    def node(self, name: str, *inputs: Node, **attrs: Attr) -> Node:
        """A node of an op that has a shape rule."""
        spec = META.cells[name](self.oracle, *[node.spec for node in inputs], **attrs)
        made = Node(PRIMS.rows[name], inputs, attrs, spec, self.origin)
        self.nodes.append(made)
        return made

    def add(self, op: Prim, inputs: tuple[Node, ...], attrs: Mapping[str, Attr], spec: Spec) -> Node:
        """A node with a spec from the caller."""
        made = Node(op, inputs, attrs, spec, self.origin)
        self.nodes.append(made)
        return made

    def append(self, node: Node) -> Node:
        """Append a node made elsewhere; an equal constant may replace it."""
        if node.op is CONSTANT:
            attrs = node.attrs
            key = (type(attrs["value"]), repr(attrs["value"]), attrs["dtype"], attrs["device"])
            found = self._constants.setdefault(key, node)
            if found is not node:
                return found
        self.nodes.append(node)
        return node

    def constant(self, value: Number | Expr, dtype: torch.dtype, device: torch.device) -> Node:
        """A number of rank 0; the same node for the same number."""
        key = (type(value), repr(value), dtype, device)
        found = self._constants.get(key)
        if found is None:
            attrs: dict[str, Attr] = {"value": value, "dtype": dtype, "device": device}
            found = self._constants[key] = self.add(CONSTANT, (), attrs, TensorSpec(dtype, (), (), 0, device))
        return found

    def aten(self, target: str, args: Sequence[Argument], kwargs: Mapping[str, Argument], spec: Spec) -> Node:
        """A call of the ATen overload `target` ("aten.mm.default"); nodes in `args` and `kwargs` become inputs."""
        inputs: list[Node] = []
        template = to_template(args, inputs)
        named = tuple([(key, to_template(value, inputs)) for key, value in kwargs.items()])
        return self.add(ATEN, tuple(inputs), {"target": target, "args": template, "kwargs": named}, spec)

    def finish(self, outputs: Iterable[Node | Output], writes: Iterable[Write] = (), name: str = "graph") -> Graph:
        results = tuple([value if isinstance(value, Output) else Output(value) for value in outputs])
        return Graph(tuple(self.inputs), self.nodes, results, tuple(writes), name)


def to_template(value: Argument, inputs: list[Node]) -> Attr:
    """`value` with each node replaced by the `Arg` of the input it becomes; lists become tuples.

    A node that is given twice is two inputs, so that rules find the arguments of a call at their places.
    """
    if isinstance(value, Node):
        inputs.append(value)
        return Arg(len(inputs) - 1)
    if isinstance(value, list | tuple):
        return tuple([to_template(part, inputs) for part in value])
    return value  # type: ignore[return-value]
