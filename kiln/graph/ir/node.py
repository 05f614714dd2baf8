"""A node of the graph IR: a primitive op applied to the results of other nodes.

%4: f32[8, 16] = add(%2, %3)                 # model.py:41, torch.add
%5: f32[8] = sum(%4, axes=(1,))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union, final

import torch

from kiln.graph.prims.meta import HasOutputs
from kiln.graph.prims.table import Kind, Prim
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic import Expr
from kiln.tensor.spec import Spec, TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Arg:
    """Input `index` of a node, in the argument template of an `aten` or `opaque` op."""

    index: int


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """The torch call that made a node: its name, its number in the call log, the user's line, and the direction.

    `region`: its checkpoint region (whose values are not saved for the backward), 0 outside of any. `kept`: the policy
    of a selective checkpoint saves it. `to_host`: what is saved of it waits in the host's memory (`save_on_cpu`).
    """

    call: str
    number: int
    location: Location | None = None
    backward: bool = False
    region: int = 0
    kept: bool = False
    to_host: bool = False


Scalar = int | float | complex | str | None | torch.dtype | torch.device | torch.layout | torch.memory_format
Attr = Union[Scalar, Expr, Arg, HasOutputs, tuple["Attr", ...]]  # noqa: UP007
"""The value of an attribute; `HasOutputs` is a nested graph."""


@final
class Node:
    """Immutable (passes build new graphs); compared by identity.

    `attrs` are made of `Attr`; which type an attribute has depends on the op, so it is read without a check.
    `spec` is a tuple for ops with several results; `item` nodes take them apart.
    """

    __slots__ = ("attrs", "inputs", "op", "origin", "spec")

    def __init__(
        self,
        op: Prim,
        inputs: tuple[Node, ...],
        attrs: Mapping[str, Attr],
        spec: Spec,
        origin: Origin | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs: Mapping[str, Any] = attrs
        self.spec = spec
        self.origin = origin

    @property
    def tensor(self) -> TensorSpec:
        """The spec of a node with one tensor result."""
        spec = self.spec
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"the result of `{self.op.name}` is {spec}, not a tensor")
        return spec

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.spec}>"


Argument = Union[Attr, Node, Sequence["Argument"]]  # noqa: UP007
"""An argument of an ATen call, with nodes for tensors."""


def bytes_of(node: Node) -> int | None:
    """Of a tensor's elements; None if its sizes are not fixed."""
    count = node.tensor.numel()
    return count * node.tensor.dtype.itemsize if isinstance(count, int) else None


def call_of(node: Node) -> Node:
    """The node of several results that this is one of; the node itself if it makes its value alone."""
    return node.inputs[0] if node.op.name == "item" else node


def base_of(node: Node) -> Node:
    """The value that a chain of views starts from; the node itself if it is not a view."""
    while node.op.kind is Kind.VIEW:
        node = node.inputs[0]
    return node
