"""Primitives that a single ATen call computes.

    sum(%0, axes=(1,), ...)       AtenCall("aten.sum.dim_IntList", (%0, (1,)), ())
    a primitive of two calls      None

The inputs may be of any type: nodes, arguments of a loop program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, final

from kiln.graph.ir.aten_rules import ATEN_RULES
from kiln.graph.ir.node import Attr, Node
from kiln.graph.prims.table import Prim
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class AtenCall(Generic[T]):
    """Overload `target` with its arguments (inputs of type T and attributes); lists in them are tuples."""

    target: str
    args: tuple[T | Attr, ...]
    kwargs: tuple[tuple[str, T | Attr], ...]


@final
@dataclass(slots=True)
class _CallRecorder:
    """The `call` of a rule of the column `aten`: counts calls and returns them as data."""

    spec: TensorSpec
    count: int = 0

    def __call__(self, name: str, *args: object, **kwargs: object) -> AtenCall[T]:
        self.count += 1
        named = tuple([(key, _tuples(value)) for key, value in kwargs.items()])
        return AtenCall(f"aten.{name}", _tuples(args), named)  # type: ignore[arg-type]


def single_call(node: Node, inputs: Sequence[T]) -> AtenCall[T] | None:
    """The call on `inputs` that computes `node`; None without a rule, or where it takes several calls."""
    return call_of(node.op, node.tensor, inputs, node.attrs)


def call_of(op: Prim, spec: TensorSpec, inputs: Sequence[T], attrs: Mapping[str, Attr]) -> AtenCall[T] | None:
    """The same for `op` with a result of `spec`."""
    rule = ATEN_RULES.get(op.name)
    if rule is None:
        return None
    calls = _CallRecorder(spec)
    made = rule(calls, *inputs, **attrs)
    if calls.count == 0 and (same := [value for value in inputs if value is made]):
        return AtenCall("aten.clone.default", (same[0],), ())
    return made if calls.count == 1 and isinstance(made, AtenCall) else None


def _tuples(value: object) -> object:
    return tuple([_tuples(part) for part in value]) if isinstance(value, tuple | list) else value
