"""Makes primitive nodes in order: what decompositions are written with.

    e = Emit(oracle)
    e.pointwise("add", x, 1.0)         %2: f32[4] = constant(value=1.0, dtype=f32, device=cpu)
                                       %3: f32[4] = add(%1, %2)

A Python number becomes a `constant` of the dtype of the tensors beside it; equal constants are made once.
Nodes remember `origin`, the torch call that is being recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from kiln.graph.ir.node import Arg, Node, Origin
from kiln.graph.prims.meta import META, pointwise_spec, preserved_strides
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.spec import ScalarSpec, SizeOracle, Spec, TensorSpec
from kiln.graph.prims.table import Prim
from kiln.symbolic import Int

Number = int | float | bool | complex
Operand = Node | Number

_ATEN, _ITEM, _CONSTANT = PRIMS["aten"], PRIMS["item"], PRIMS["constant"]
_CONVERT = PRIMS["convert"]


class Emit:
    """A growing list of nodes. `numerics` is "fast", "rounded" or "strict" (see the design)."""

    def __init__(self, oracle: SizeOracle, numerics: str = "fast") -> None:
        self.oracle = oracle
        self.numerics = numerics
        self.nodes: list[Node] = []
        self.origin: Origin | None = None
        self._constants: dict[tuple[str, torch.dtype, torch.device], Node] = {}

    def node(self, name: str, *inputs: Node, **attrs: Any) -> Node:
        """One node of any op that has a shape rule."""
        spec = META[name](self.oracle, *[one.spec for one in inputs], **attrs)
        return self.add(PRIMS[name], inputs, attrs, spec)

    def add(self, op: Prim, inputs: tuple[Node, ...], attrs: dict[str, Any], spec: Spec) -> Node:
        """One node whose spec the caller knows."""
        made = Node(op, inputs, attrs, spec, self.origin)
        self.nodes.append(made)
        return made

    def constant(self, value: Number, dtype: torch.dtype, device: torch.device) -> Node:
        """One number of rank 0, as an element of `dtype`; the same node for the same number."""
        value = as_dtype(value, dtype)
        key = (repr(value), dtype, device)
        found = self._constants.get(key)
        if found is None:
            attrs = {"value": value, "dtype": dtype, "device": device}
            found = self._constants[key] = self.add(_CONSTANT, (), attrs, TensorSpec(dtype, (), (), 0, device))
        return found

    def pointwise(self, name: str, *operands: Operand) -> Node:
        """A pointwise op on tensors of one dtype and numbers."""
        op = PRIMS[name]
        nodes = operands if all(type(one) is Node for one in operands) else self._lift(operands)
        specs = [one.spec for one in nodes]  # type: ignore[union-attr]
        result = torch.bool if op.result == "bool" else specs[-1].dtype  # type: ignore[union-attr]
        return self.add(op, nodes, {}, pointwise_spec(self.oracle, specs, result))  # type: ignore[arg-type]

    def _lift(self, operands: Sequence[Operand]) -> tuple[Node, ...]:
        like = next(one.tensor for one in reversed(operands) if isinstance(one, Node))
        return tuple(
            [one if isinstance(one, Node) else self.constant(one, like.dtype, like.device) for one in operands]
        )

    def convert(self, x: Node, dtype: torch.dtype) -> Node:
        """`x` in `dtype`; `x` itself where it has it."""
        return x if x.tensor.dtype is dtype else self.node("convert", x, dtype=dtype)

    def full(self, value: Number, sizes: tuple[Int, ...], dtype: torch.dtype, device: torch.device) -> Node:
        return self.node("full", self.constant(value, dtype, device), sizes=sizes)

    def preserved_strides(self, spec: TensorSpec) -> tuple[Int, ...]:
        """Strides that a copy has which preserves the format of `spec`."""
        return preserved_strides(self.oracle, spec.sizes, spec.strides)

    def library(self, target: str, args: Sequence[Any], kwargs: dict[str, Any], spec: Spec) -> Any:
        """An ATen kernel: its result, or the tuple of its results (None where it returns no tensor)."""
        inputs: list[Node] = []
        places: dict[int, Arg] = {}
        template = _template(tuple(args), inputs, places)
        named = tuple([(key, _template(value, inputs, places)) for key, value in kwargs.items()])
        attrs = {"target": target, "args": template, "kwargs": named}
        made = self.add(_ATEN, tuple(inputs), attrs, spec)
        return self.items(made) if isinstance(spec, tuple) else made

    def items(self, made: Node) -> tuple[Node | None, ...]:
        """The results of an op with several, one node each."""
        parts: Iterable[TensorSpec | ScalarSpec | None] = made.spec  # type: ignore[assignment]
        return tuple(
            [None if part is None else self.add(_ITEM, (made,), {"index": i}, part) for i, part in enumerate(parts)]
        )


Rule = Callable[..., Any]


def as_dtype(value: Number, dtype: torch.dtype) -> Number:
    """A Python number as an element of `dtype`."""
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        raise RuntimeError("value cannot be converted to a real type without overflow")
    return float(value) if dtype.is_floating_point else int(value)


def _template(value: Any, inputs: list[Node], places: dict[int, Arg]) -> Any:
    """`value` with each node replaced by the number of the input it becomes; lists become tuples."""
    if type(value) is Node:
        place = places.get(id(value))
        if place is None:
            place = places[id(value)] = Arg(len(inputs))
            inputs.append(value)
        return place
    if isinstance(value, list | tuple):
        return tuple([_template(one, inputs, places) for one in value])
    return value
