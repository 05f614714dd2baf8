"""Branches and loops: calls with loop programs of their nested graphs.

    %3 = cond(%0, %1, true=@0, false=@1)      =>      b0: f32[4] = extern kiln.cond(a0, [a1], [s0])
                                                          loops true ...
                                                          loops false ...

The symbols that a nested graph uses become its last arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import nested_graphs, symbols_in
from kiln.graph.prims.rows import PRIMS
from kiln.loops.lowering.column import STATEMENT
from kiln.loops.lowering.lower import Lowering, origin_text
from kiln.loops.program.nodes import COND, SCAN, WHILE_LOOP, BufferArg, Extern, LoopProgram
from kiln.symbolic import Symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec


@STATEMENT("cond")
def cond(lowering: Lowering, node: Node) -> None:
    condition, *given = arguments(lowering, node.inputs)
    sizes = symbols_inside(node)
    emit(lowering, node, COND, (condition, tuple(given), sizes), sizes)


@STATEMENT("while_loop")
def while_loop(lowering: Lowering, node: Node) -> None:
    given, count = arguments(lowering, node.inputs), len(node.attrs["body"].outputs)
    sizes = symbols_inside(node)
    emit(lowering, node, WHILE_LOOP, (given[:count], given[count:], sizes), sizes)


@STATEMENT("scan")
def scan(lowering: Lowering, node: Node) -> None:
    given, carried = arguments(lowering, node.inputs), node.attrs["carried"]
    end, sizes = carried + node.attrs["rows"], symbols_inside(node)
    count = node.inputs[carried].tensor.sizes[0]
    emit(lowering, node, SCAN, (given[:carried], given[carried:end], given[end:], sizes, count), sizes)


def arguments(lowering: Lowering, values: Sequence[Node]) -> tuple[BufferArg, ...]:
    return tuple([lowering.argument(value) for value in values])


def symbols_inside(node: Node) -> tuple[Symbol, ...]:
    """The sizes that the nested graphs of `node` depend on."""
    used: set[Symbol] = set()
    for graph in nested_graphs(node):
        used |= symbols_in(graph)
    return tuple(sorted(used, key=str))


def emit(lowering: Lowering, node: Node, target: str, args: tuple[object, ...], sizes: Sequence[Symbol]) -> None:
    assert isinstance(node.spec, tuple)
    programs = tuple([lowered(lowering, graph, sizes) for graph in nested_graphs(node)])
    outs = tuple([lowering.new_buffer(spec) for spec in node.spec if isinstance(spec, TensorSpec)])
    lowering.results[node] = outs
    ordered = any(isinstance(inner, Extern) and inner.ordered for program in programs for inner in program.nodes)
    lowering.emit(Extern(outs, target, args, origin=origin_text(node), nested=programs, ordered=ordered))


def lowered(lowering: Lowering, graph: Graph, sizes: Sequence[Symbol]) -> LoopProgram:
    numbers = [
        Node(PRIMS["input"], (), {"index": len(graph.inputs) + at, "name": size.name}, ScalarSpec(int, size))
        for at, size in enumerate(sizes)
    ]
    graph = replace(graph, inputs=(*graph.inputs, *numbers))
    return Lowering(graph, lowering.target, lowering.events, lowering.env).run()
