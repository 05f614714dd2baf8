"""A hash of what a graph computes, independent of names and origins.

    fingerprint(graph)      equal for graphs of equal text up to names of inputs and origins
    block_key(nodes)        equal for runs of nodes that compute the same from their own external values

Values are numbered by first use, so equal blocks (layers) of a model have equal keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.text import alias_text, spec_text, value_text


def fingerprint(graph: Graph) -> str:
    """40 hexadecimal digits."""
    numbers = {node: str(i) for i, node in enumerate(graph.inputs)}
    parts = ["in", *(spec_text(node.spec) for node in graph.inputs)]
    parts += _node_parts(graph.nodes, numbers)
    for output in graph.outputs:
        alias = alias_text(output.alias) if output.alias else ""
        parts += ["out", numbers[output.value], alias, str(output.requires_grad)]
    for write in graph.writes:
        parts += ["write", numbers[write.target], numbers[write.value]]
    return _digest(parts)


def block_key(nodes: Sequence[Node]) -> str:
    """The hash of a run of nodes; external values are numbered by first use, with their specs."""
    return _digest(_node_parts(nodes, {}))


def _node_parts(nodes: Sequence[Node], numbers: dict[Node, str]) -> list[str]:
    parts: list[str] = []
    for node in nodes:
        for value in node.inputs:
            if value not in numbers:
                numbers[value] = f"{len(numbers)}:{spec_text(value.spec)}"
        nested: list[Graph] = []
        inputs = [numbers[value] for value in node.inputs]
        attrs = value_text(tuple(node.attrs.items()), inputs, nested) if node.attrs else ""
        parts += [node.op.name, spec_text(node.spec), *inputs, attrs, *map(fingerprint, nested)]
        numbers[node] = str(len(numbers))
    return parts


def _digest(parts: list[str]) -> str:
    return hashlib.blake2b("\x00".join(parts).encode(), digest_size=20).hexdigest()
