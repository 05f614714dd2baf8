"""Which inputs and outputs of a region eager saves for its backward, and so must not change before it.

    y = x.exp() * 1       autograd saves the result of exp, not y: y may change, although a pass makes both one value
                          EagerSaves(inputs=frozenset(), outputs=frozenset())

It is read off the joint graph before the passes: formulas of autograd read what eager saves.
"""

from __future__ import annotations

from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import computed_from
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class EagerSaves:
    """Numbers of inputs, and of outputs that are not aliases of others."""

    inputs: frozenset[int]
    outputs: frozenset[int]


def eager_saves(graph: Graph, num_inputs: int, num_outputs: int) -> EagerSaves:
    """Of the first inputs and outputs of a joint graph before its passes; its other inputs are the tangents."""
    backward = computed_from(graph.nodes, graph.inputs[num_inputs:])
    read = {
        base_of(value)
        for node in graph.nodes
        if is_derivative(node) or node in backward or region_of(node)
        for value in node.inputs
    }
    inputs = [number for number, node in enumerate(graph.inputs[:num_inputs]) if node in read]
    outputs = [
        number
        for number, output in enumerate(graph.outputs[:num_outputs])
        if output.alias is None and base_of(output.value) in read
    ]
    return EagerSaves(frozenset(inputs), frozenset(outputs))


def is_derivative(node: Node) -> bool:
    """Whether the autograd engine recorded it."""
    return node.origin is not None and node.origin.backward


def is_kept(node: Node) -> bool:
    """Whether the policy of a selective checkpoint saves it."""
    return node.origin is not None and node.origin.kept


def region_of(node: Node) -> int:
    """The checkpoint region it was recorded in, whose arguments it saves; 0 for none."""
    return node.origin.region if node.origin is not None else 0
