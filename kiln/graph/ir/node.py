"""A node of the graph IR: one primitive op applied to the results of other nodes.

%4: f32[8, 16] = add(%2, %3)                 # model.py:41, torch.add
%5: f32[8] = sum(%4, axes=(1,))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from kiln.graph.prims.table import Kind, Prim
from kiln.support.location import Location
from kiln.tensor.spec import Spec, TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Arg:
    """Stands for input number `index` of a node inside the argument template of an `aten` or `opaque` op."""

    index: int


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """Which torch call made a node: its name, its number in the call log, the user's line, and the direction.

    `region`: the number of the checkpoint region it was made in (its values are not saved for backward); 0: none.
    """

    call: str
    number: int
    location: Location | None = None
    backward: bool = False
    region: int = 0


@final
class Node:
    """Immutable once made (passes build new graphs); compared by identity.

    `attrs` holds int, Expr, float, bool, str, dtype, device, None, `Arg`, `Graph` and tuples of these.
    `spec` is a tuple for ops with several results; `item` nodes take them apart.
    """

    __slots__ = ("attrs", "inputs", "op", "origin", "spec")

    def __init__(
        self,
        op: Prim,
        inputs: tuple[Node, ...],
        attrs: Mapping[str, Any],
        spec: Spec,
        origin: Origin | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.spec = spec
        self.origin = origin

    @property
    def tensor(self) -> TensorSpec:
        """The spec of a node with one tensor result."""
        spec = self.spec
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"`{self.op.name}` has no single tensor result but {spec}")
        return spec

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.spec}>"


def base_of(node: Node) -> Node:
    """The value whose memory, or elements, a view looks at; a value that is no view is its own."""
    while node.op.kind is Kind.VIEW:
        node = node.inputs[0]
    return node
