"""The one ATen call that computes a primitive, where a single one does.

    sum(%0, axes=(1,), ...)       AtenCall("aten.sum.dim_IntList", (%0, (1,)), ())
    a primitive of two calls      None

What stands for the inputs may be anything: nodes, arguments of a loop program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from kiln.graph.ir.aten_rules import ATEN_RULES
from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Prim
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class AtenCall:
    """Overload `target` with its arguments; lists in them are tuples."""

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]


@final
@dataclass(slots=True)
class _Calls:
    """What a rule of the column `aten` is handed as `call`: counts, and writes down."""

    spec: TensorSpec
    count: int = 0

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> AtenCall:
        self.count += 1
        return AtenCall(f"aten.{name}", _tuples(args), tuple([(key, _tuples(value)) for key, value in kwargs.items()]))


def single_call(node: Node, inputs: Sequence[Any]) -> AtenCall | None:
    """The call on `inputs` that computes `node`; None where there is no rule, or it takes several calls."""
    return call_of(node.op, node.tensor, inputs, node.attrs)


def call_of(op: Prim, spec: TensorSpec, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> AtenCall | None:
    """The same for `op` with a result like `spec`."""
    rule = ATEN_RULES.get(op.name)
    if rule is None:
        return None
    calls = _Calls(spec)
    made = rule(calls, *inputs, **attrs)
    if calls.count == 0 and any(made is one for one in inputs):
        return AtenCall("aten.clone.default", (made,), ())
    return made if calls.count == 1 and isinstance(made, AtenCall) else None


def _tuples(value: Any) -> Any:
    return tuple([_tuples(one) for one in value]) if isinstance(value, tuple | list) else value
