"""Which inputs and outputs of a region eager saves for its backward, and so must not change before it.

    y = x.exp() * 1       autograd saves the result of exp, not y: y may change, although a pass makes both one value
                          EagerSaves(inputs={}, outputs={})
    z = y.relu()          z is saved: EagerSaves(inputs={}, outputs={0: SavedUse(tangents=1, gradients=1)})

It is read off the joint graph before the passes: formulas of autograd read what eager saves. What they do not read, its
functions say (`function_saves.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class SavedUse:
    """Which tangents, and gradients of inputs, go through the formulas that read a value: numbers, as bits."""

    tangents: int
    gradients: int


UNUSED = SavedUse(0, 0)


@final
@dataclass(frozen=True, slots=True)
class EagerSaves:
    """By numbers of inputs, and of outputs that are not aliases of others."""

    inputs: Mapping[int, SavedUse]
    outputs: Mapping[int, SavedUse]


def eager_saves(
    graph: Graph,
    num_inputs: int,
    num_outputs: int,
    grads: Sequence[int | None],
    kept: Iterable[tuple[Node, SavedUse]] = (),
) -> EagerSaves:
    """Of the first inputs and outputs of a joint graph before its passes; its other inputs are the tangents, its other
    outputs the gradients. `grads`: for each input the number of its gradient, or None. `kept`: what is saved for other
    reasons than that the graph reads it."""
    owners: dict[Node, int] = {}
    for number, grad in enumerate(grads):
        if grad is not None:
            value = graph.outputs[grad].value
            owners[value] = owners.get(value, 0) | 1 << number
    tangents, read = tangents_behind(graph, num_inputs), dict[Node, SavedUse]()
    for node in reversed(graph.nodes):
        if not (is_derivative(node) or node in tangents or region_of(node)):
            continue
        own = read.get(node, UNUSED)
        use = SavedUse(tangents.get(node) or own.tangents, own.gradients | owners.get(node, 0))
        note(read, node.inputs, use)
    for node, use in kept:
        note(read, (node,), use)
    inputs = {number: read[node] for number, node in enumerate(graph.inputs[:num_inputs]) if node in read}
    outputs = {
        number: read[base_of(output.value)]
        for number, output in enumerate(graph.outputs[:num_outputs])
        if output.alias is None and base_of(output.value) in read
    }
    return EagerSaves(inputs, outputs)


def note(read: dict[Node, SavedUse], values: Sequence[Node], use: SavedUse) -> None:
    for value in {*values, *map(base_of, values)}:
        other = read.get(value, UNUSED)
        read[value] = SavedUse(other.tangents | use.tangents, other.gradients | use.gradients)


def renumbered(bits: int, numbers: Sequence[int]) -> int:
    return reduce(or_, [1 << number for place, number in enumerate(numbers) if bits >> place & 1], 0)


def tangents_behind(graph: Graph, num_inputs: int) -> dict[Node, int]:
    """Of each node of the backward the tangents from which it is computed, as bits."""
    found = {node: 1 << number for number, node in enumerate(graph.inputs[num_inputs:])}
    for node in graph.nodes:
        if bits := reduce(or_, [found.get(value, 0) for value in node.inputs], 0):
            found[node] = bits
    return found


def numbers_of(bits: int, count: int) -> tuple[int, ...]:
    return tuple([number for number in range(count) if bits >> number & 1])


def is_derivative(node: Node) -> bool:
    """Whether the autograd engine recorded it."""
    return node.origin is not None and node.origin.backward


def is_kept(node: Node) -> bool:
    """Whether the policy of a selective checkpoint saves it."""
    return node.origin is not None and node.origin.kept


def region_of(node: Node) -> int:
    """The checkpoint region it was recorded in, whose arguments it saves; 0 for none."""
    return node.origin.region if node.origin is not None else 0
