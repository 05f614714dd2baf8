"""One symbol for sizes that guards make equal.

    guard s2 == s0
    graph(%0: f32[s0, s1] "x", %1: f32[s2, s3] "y"):    =>    graph(%0: f32[s0, s1] "x", %1: f32[s0, s3] "y"):
        %2: f32[s2, s1] = ...                                     %2: f32[s0, s1] = ...

Two arguments of one size have a symbol each when they are captured, and that they are equal is found out on the way
(`x + y`). Index arithmetic over both stays long: `view` of one into the shape of the other divides, where with one
symbol it is nothing. A size that must be 1 is 1. Only guards count, which hold before the region runs: what the region
itself checks must stay a question of two numbers.
Needs: no nested graphs, which name sizes of their own.  Keeps: the order of inputs, nodes and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kiln.graph.ir.graph import Graph, Output, Write
from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind
from kiln.symbolic import Expr, Int, Relation, ShapeEnv, Symbol, substituted
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

Names = Mapping[Symbol, Int]


def equal_symbols(graph: Graph, env: ShapeEnv) -> Names:
    """The symbols of arguments that a guard makes equal to another one, or a number, which `graph` has instead."""
    if any(node.op.kind is Kind.NESTED for node in graph.nodes):
        return {}
    decided = {*env.unbacked, *env.conditional}
    return {
        symbol: other
        for symbol, other in env.replacements.items()
        if isinstance(other, Symbol | int) and symbol not in decided and other not in decided and other != 0
    }


def with_one_symbol(graph: Graph, names: Names) -> Graph:
    """`graph` with the symbols of `names` replaced."""
    if not names:
        return graph
    made: dict[Node, Node] = {}
    for node in (*graph.inputs, *graph.nodes):
        attrs = {key: renamed(value, names) for key, value in node.attrs.items()}
        read = tuple([made[value] for value in node.inputs])
        made[node] = Node(node.op, read, attrs, renamed_spec(node.spec, names), node.origin)
    inputs, nodes = tuple([made[node] for node in graph.inputs]), [made[node] for node in graph.nodes]
    outputs = tuple([renamed_output(output, made[output.value], names) for output in graph.outputs])
    writes = tuple([Write(made[write.target], made[write.value], write.versions) for write in graph.writes])
    return Graph(inputs, nodes, outputs, writes, graph.name)


def renamed(value: Any, names: Names) -> Any:
    """An attribute of a node."""
    if isinstance(value, tuple):
        return tuple([renamed(item, names) for item in value])
    if isinstance(value, Expr | Relation):
        return value.substitute(names)
    return renamed_spec(value, names) if isinstance(value, TensorSpec | ScalarSpec) else value


def renamed_spec(spec: Spec, names: Names) -> Spec:
    if isinstance(spec, tuple):
        return tuple([None if part is None else renamed_part(part, names) for part in spec])
    return renamed_part(spec, names)


def renamed_part(spec: TensorSpec | ScalarSpec, names: Names) -> TensorSpec | ScalarSpec:
    if isinstance(spec, TensorSpec):
        return renamed_tensor(spec, names)
    value = None if spec.value is None else substituted(spec.value, names)
    return replace(spec, value=value) if isinstance(value, Symbol) else spec  # a number stays an argument


def renamed_tensor(spec: TensorSpec, names: Names) -> TensorSpec:
    sizes, strides = [tuple([substituted(value, names) for value in part]) for part in (spec.sizes, spec.strides)]
    return spec.with_view(sizes, strides, substituted(spec.offset, names))


def renamed_output(output: Output, value: Node, names: Names) -> Output:
    alias = output.alias
    if alias is not None and alias.view is not None:
        alias = replace(alias, view=renamed_tensor(alias.view, names))
    return replace(output, value=value, alias=alias)
