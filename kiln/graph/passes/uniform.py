"""Uniform values: the same number in every element.

%1 = constant(value=1.0); %2 = full(%1, sizes=(4, 8)); %3 = permute(%2, dims=(1, 0))      all are 1.0
"""

from __future__ import annotations

from typing import final

from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind

Number = int | float | bool | complex

SAME_ELEMENTS = frozenset({"full", "clone", "reshape", "flip"})
"""Ops other than views that rearrange elements of the first input."""


@final
class Uniform:
    """A memo of `value`."""

    def __init__(self) -> None:
        self._known: dict[Node, Number | None] = {}

    def value(self, node: Node) -> Number | None:
        """The number in every element of `node`, or None."""
        if node in self._known:
            return self._known[node]
        chain: list[Node] = []
        while node not in self._known:
            chain.append(node)
            if node.op.kind is not Kind.VIEW and node.op.name not in SAME_ELEMENTS:
                break
            if node.op.name == "view_dtype":
                break
            node = node.inputs[0]
        found = self._known.get(node)
        if found is None and node.op.name == "constant":
            value = node.attrs["value"]
            found = value if isinstance(value, Number) else None
        for other in chain:
            self._known[other] = found
        return found


def same_number(left: Number, right: Number) -> bool:
    """Equal, with zeros of the same sign; NaN equals nothing."""
    return left == right and (left != 0 or str(complex(left)) == str(complex(right)))
