"""Makes primitive nodes in order: what decompositions are written with.

    e = Emit(oracle)
    e.pointwise("add", x, 1.0)         %2: f32[4] = constant(value=1.0, dtype=f32, device=cpu)
                                       %3: f32[4] = add(%1, %2)

A Python number becomes a `constant` of the dtype of the tensors beside it; equal constants are made once.
Nodes remember `origin`, the torch call that is being recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.prims.meta import CHECKS, pointwise_spec, preserved_strides
from kiln.graph.prims.rows import PRIMS
from kiln.symbolic import Expr, Int
from kiln.symbolic.values import Given, Real
from kiln.tensor.spec import ScalarSpec, SizeOracle, Spec, TensorSpec

Number = int | float | bool | complex
Operand = Node | Number

_REAL_PRIMS = {"truediv": "div", "min": "minimum", "max": "maximum", "mod": "remainder", "floordiv": "floor_div"} | {
    name: name for name in ("add", "sub", "mul", "pow", "neg", "sqrt")
}
REAL_ONLY = frozenset({
    "maximum", "minimum", "lt", "le", "gt", "ge", "floor", "ceil", "trunc", "round", "fmod", "remainder", "atan2",
    "erf", "erfc", "erfinv", "lgamma", "digamma", "signbit", "sign",
})  # fmt: skip
"""They order numbers or cut them, which complex ones do not let be done."""
_ITEM = PRIMS["item"]
_ROWS = PRIMS.rows


def refuse_complex(op: str, *operands: Node) -> None:
    """For rules that are true of real numbers alone."""
    if any(one.tensor.dtype.is_complex for one in operands):
        raise UnsupportedOp(op=op, reason="it has no rule for complex numbers")


@final
class Emit(Builder):
    """A growing list of nodes, with the operations that decompositions need."""

    __slots__ = ("_specialise", "givens")

    def __init__(self, oracle: SizeOracle, specialise: Callable[[Int], int] | None = None) -> None:
        super().__init__(oracle)
        self._specialise = specialise
        self.givens: dict[Given, Node] = {}
        """The inputs that hold the caller's real numbers."""

    def static(self, value: Int) -> int:
        """The number of a size in this call, which becomes a guard: for what no graph with symbols can express."""
        if isinstance(value, int):
            return value
        if self._specialise is None:
            raise ValueError(f"the number of {value} is needed")
        return self._specialise(value)

    def node(self, name: str, *inputs: Node, **attrs: Any) -> Node:
        """One node, whose shapes are checked as its kernel relies on them."""
        if (check := CHECKS.get(name)) is not None:
            check(self.oracle, *[one.spec for one in inputs], **attrs)
        return super().node(name, *inputs, **attrs)

    def number(self, value: Number | Int | Real, dtype: torch.dtype, device: torch.device) -> Node:
        """One number, size or real number over sizes, of rank 0, as an element of `dtype`."""
        if isinstance(value, Real):
            return self.convert(self._real(value, device), dtype)
        return self.constant(value if isinstance(value, Expr) else as_dtype(value, dtype), dtype, device)  # type: ignore[arg-type]

    def _real(self, value: Number | Int | Real, device: torch.device) -> Node:
        """A real number over sizes, computed in float64."""
        if not isinstance(value, Real):
            return self.number(value, torch.float64, device)
        if value.op == "given":
            return self.givens[value.args[0]]  # type: ignore[index]
        parts = [self._real(one, device) for one in value.args]  # type: ignore[arg-type]
        return parts[0] if value.op == "float" else self.pointwise(_REAL_PRIMS[value.op], *parts)

    def pointwise(self, name: str, *operands: Operand) -> Node:
        """A pointwise op on tensors of one dtype and numbers. A rule that orders complex numbers is not for them."""
        op = _ROWS[name]
        nodes = operands if all(type(one) is Node for one in operands) else self._lift(operands)
        specs = [one.spec for one in nodes]  # type: ignore[union-attr]
        if name in REAL_ONLY:
            refuse_complex(name, nodes[-1])  # type: ignore[arg-type]
        result = torch.bool if op.result == "bool" else specs[-1].dtype  # type: ignore[union-attr]
        return self.add(op, nodes, {}, pointwise_spec(self.oracle, specs, result))  # type: ignore[arg-type]

    def _lift(self, operands: Sequence[Operand]) -> tuple[Node, ...]:
        like = next(one.tensor for one in reversed(operands) if isinstance(one, Node))
        return tuple([one if isinstance(one, Node) else self.number(one, like.dtype, like.device) for one in operands])

    def convert(self, x: Node, dtype: torch.dtype) -> Node:
        """`x` in `dtype`; `x` itself where it has it."""
        return x if x.tensor.dtype is dtype else self.node("convert", x, dtype=dtype)

    def full(self, value: Number, sizes: tuple[Int, ...], dtype: torch.dtype, device: torch.device) -> Node:
        return self.node("full", self.number(value, dtype, device), sizes=sizes)

    def preserved_strides(self, spec: TensorSpec) -> tuple[Int, ...]:
        """Strides that a copy has which preserves the format of `spec`."""
        return preserved_strides(self.oracle, spec.sizes, spec.strides)

    def library(
        self, target: str, args: Sequence[Any], kwargs: dict[str, Any], spec: Spec, *, random: bool = False
    ) -> Any:
        """An ATen kernel: its result, or the tuple of its results (None where it returns no tensor).

        One that draws random numbers is kept in order, as an `opaque` step.
        """
        made = self.aten(target, args, kwargs, spec)
        if random:
            self.nodes.pop()
            made = self.add(_ROWS["opaque"], made.inputs, dict(made.attrs), spec)
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
