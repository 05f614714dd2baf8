"""Emits primitive nodes: what decompositions are written with.

    e = Emit(oracle)
    e.pointwise("add", x, 1.0)         %2: f32[4] = constant(value=1.0, dtype=f32, device=cpu)
                                       %3: f32[4] = add(%1, %2)

A Python number becomes a `constant` in the dtype of the other operands; equal constants share a node.
Nodes carry `origin`, the torch call that is being recorded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import final, overload

import torch

from kiln.graph.ir.build import Builder, Number
from kiln.graph.ir.node import Argument, Attr, Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.prims.meta import CHECKS, META, pointwise_spec, preserved_strides
from kiln.graph.prims.rows import PRIMS
from kiln.symbolic import Expr, Int, rel_le
from kiln.symbolic.values import Given, Real, fits_within
from kiln.tensor.spec import CPU, ScalarSpec, SizeOracle, Spec, TensorSpec

Operand = Node | Number
Arguments = Sequence[Argument]
NamedArguments = Mapping[str, Argument]
Parts = tuple[TensorSpec | ScalarSpec | None, ...]
Compare = Callable[[Callable[[float, float], bool], Int | float | Real, Int | float | Real], bool | None]
"""(comparison, left, right) -> what it is, which each call checks, or None where data decide."""

CHOICES = {"min": "lt", "max": "gt"}
"""Python's choices of two numbers -> the comparison by which the second is chosen."""
REAL_PRIMS = {"truediv": "div", "mod": "remainder", "floordiv": "floor_div"} | {
    name: name for name in ("add", "sub", "mul", "pow", "neg", "abs", "sqrt", "exp", "expm1", "log", "log2", "log10",
                            "log1p", "sin", "cos", "tan", "tanh", "atan", "atan2", "asinh", "hypot", "copysign",
                            "erf", "erfc")
}  # fmt: skip
"""Operations of Python on numbers -> primitives, which compute them in float64."""
OVERFLOWING = {
    torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16", torch.float32: "float", torch.float64: "double",
    torch.complex64: "c10::complex<float>", torch.complex128: "c10::complex<double>",
}  # fmt: skip
"""Dtypes into which only infinite numbers and those within the range are converted, by their names in C++."""
REAL_ONLY = frozenset({
    "maximum", "minimum", "lt", "le", "gt", "ge", "floor", "ceil", "trunc", "round", "fmod", "remainder", "atan2",
    "erf", "erfc", "erfinv", "lgamma", "digamma", "signbit", "sign",
})  # fmt: skip
"""Undefined for complex dtypes: ordering and rounding."""
LARGEST = 2**63 - 1
"""Symbolic integers are not larger."""
_ITEM = PRIMS["item"]
_ROWS = PRIMS.rows


def refuse_complex(op: str, *operands: Node) -> None:
    """For rules that hold for real numbers only."""
    if any(operand.tensor.dtype.is_complex for operand in operands):
        raise UnsupportedOp(op=op, reason="it has no rule for complex dtypes")


@final
class Emit(Builder):
    """A growing list of nodes, with the operations that decompositions need."""

    __slots__ = ("_compare", "_specialise", "givens")

    def __init__(
        self, oracle: SizeOracle, specialise: Callable[[Int], int] | None = None, compare: Compare | None = None
    ) -> None:
        super().__init__(oracle)
        self._specialise = specialise
        self._compare = compare
        self.givens: dict[Given, Node] = {}
        """Floats of the caller, and those read of tensors, which lie where those do."""

    def static(self, value: Int) -> int:
        """The value of a size in this call, with a guard: for what cannot be expressed with symbols."""
        if isinstance(value, int):
            return value
        if self._specialise is None:
            raise ValueError(f"the value of {value} is not known here")
        return self._specialise(value)

    def node(self, name: str, *inputs: Node, **attrs: Attr) -> Node:
        """A node whose input shapes have been checked against what its kernel relies on."""
        specs = [node.spec for node in inputs]
        if (check := CHECKS.cells.get(name)) is not None:
            check(self.oracle, *specs, **attrs)
        made = Node(_ROWS[name], inputs, attrs, META.cells[name](self.oracle, *specs, **attrs), self.origin)
        self.nodes.append(made)
        return made

    def number(self, value: Number | Int | Real, dtype: torch.dtype, device: torch.device) -> Node:
        """A number, a size or a real number over sizes, as a tensor of rank 0 that ops on `device` take. One for a GPU
        may lie on the CPU: `moved` copies it."""
        if isinstance(value, Real):
            return self.convert(self._real(value, device), dtype)
        return self.constant(value if isinstance(value, Expr) else as_dtype(value, dtype), dtype, device)

    def element(self, value: Number | Int | Real, dtype: torch.dtype, device: torch.device) -> Node:
        """A number that is stored in a tensor of `dtype`: eager refuses one that does not fit."""
        self.require_fits(value, dtype)
        return self.number(value, dtype, device)

    def require_fits(self, value: object, dtype: torch.dtype) -> None:
        """Raise where eager does when a number becomes an element; for a symbolic one the compiled code checks it."""
        if not isinstance(value, Real | Expr):
            require_fits(value, dtype)
        elif not (dtype is torch.float64 or dtype is torch.bool or dtype.is_complex):
            require(self._real_fits(value, dtype) if isinstance(value, Real) else self._size_fits(value, dtype), dtype)

    def _real_fits(self, value: Real, dtype: torch.dtype) -> bool:
        if self._compare is None:
            return True
        if not dtype.is_floating_point:
            limits = torch.iinfo(dtype)
            bounds = ((operator.le, limits.min, value), (operator.le, value, limits.max))
            return all([self._compare(*bound) is not False for bound in bounds])
        fits = self._compare(fits_within, value, torch.finfo(dtype).max)
        if fits is None:
            check_fits(self, self._real(value, None), dtype)
        return fits is not False

    def _size_fits(self, value: Expr, dtype: torch.dtype) -> bool:
        if dtype.is_floating_point:
            most = int(torch.finfo(dtype).max)
            low = -most
        else:
            limits = torch.iinfo(dtype)
            low, most = limits.min or -limits.max, limits.max
        if most >= LARGEST:
            return True
        return self.oracle.expect(rel_le(low, value)) and self.oracle.expect(rel_le(value, most))

    def _real(self, value: Number | Int | Real, device: torch.device | None) -> Node:
        """A real number over sizes, computed in float64. Without a `device`, where the numbers lie that it reads."""
        if not isinstance(value, Real):
            return self.number(value, torch.float64, device or CPU)
        if value.op == "given":
            given = self.givens[value.args[0]]  # type: ignore[index]
            return self.moved(given, CPU) if device == CPU else given
        parts = [self._real(arg, device) for arg in value.args]  # type: ignore[arg-type]
        if value.op in CHOICES:  # Python's: the first unless the second is better, of which NaN is neither
            return self.pointwise("where", self.pointwise(CHOICES[value.op], *reversed(parts)), *reversed(parts))
        return parts[0] if value.op == "float" else self.pointwise(REAL_PRIMS[value.op], *parts)

    def _host_number(self, value: Argument) -> Argument:
        """An argument of a call: a real number over sizes is read on the host, from a tensor of rank 0."""
        return self._real(value, CPU) if isinstance(value, Real) else value

    def pointwise(self, name: str, *operands: Operand) -> Node:
        """A pointwise op on tensors of equal dtype, and numbers."""
        op = _ROWS[name]
        nodes = operands if all(type(operand) is Node for operand in operands) else self._lift(operands)
        specs = [node.spec for node in nodes]  # type: ignore[union-attr]
        if name in REAL_ONLY:
            refuse_complex(name, nodes[-1])  # type: ignore[arg-type]
        result = torch.bool if op.result == "bool" else specs[-1].dtype  # type: ignore[union-attr]
        return self.add(op, nodes, {}, pointwise_spec(self.oracle, specs, result))  # type: ignore[arg-type]

    def _lift(self, operands: Sequence[Operand]) -> tuple[Node, ...]:
        like = next(operand.tensor for operand in reversed(operands) if isinstance(operand, Node))
        return tuple([x if isinstance(x, Node) else self.number(x, like.dtype, like.device) for x in operands])

    def convert(self, x: Node, dtype: torch.dtype) -> Node:
        """`x` in `dtype`."""
        return x if x.tensor.dtype is dtype else self.node("convert", x, dtype=dtype)

    def moved(self, x: Node, device: torch.device) -> Node:
        """The tensor of rank 0 in the memory of `device`."""
        if x.tensor.device == device:
            return x
        spec = TensorSpec(x.tensor.dtype, (), (), 0, device)
        return self.library("aten._to_copy.default", (x,), {"device": device}, spec)

    def full(self, value: Operand, sizes: tuple[Int, ...], dtype: torch.dtype, device: torch.device) -> Node:
        """A tensor of equal elements: of a number, or the one of a tensor of rank 0."""
        element = self.convert(value, dtype) if isinstance(value, Node) else self.element(value, dtype, device)
        return self.node("full", self.moved(element, device), sizes=sizes)

    def preserved_strides(self, spec: TensorSpec) -> tuple[Int, ...]:
        """Strides of a copy that preserves the format of `spec`."""
        return preserved_strides(self.oracle, spec.sizes, spec.strides)

    @overload
    def library(
        self, target: str, args: Arguments, kwargs: NamedArguments, spec: TensorSpec, *, opaque: bool = False
    ) -> Node: ...
    @overload
    def library(
        self, target: str, args: Arguments, kwargs: NamedArguments, spec: Parts, *, opaque: bool = False
    ) -> tuple[Node | None, ...]: ...
    @overload
    def library(
        self, target: str, args: Arguments, kwargs: NamedArguments, spec: Spec, *, opaque: bool = False
    ) -> Node | tuple[Node | None, ...]: ...
    def library(
        self, target: str, args: Arguments, kwargs: NamedArguments, spec: Spec, *, opaque: bool = False
    ) -> Node | tuple[Node | None, ...]:
        """The result of an ATen call, or the tuple of its results (None where it returns no tensor).

        Real numbers become tensors of rank 0. An `opaque` call, such as one that draws random numbers, keeps its place.
        """
        args = [self._host_number(value) for value in args]
        made = self.aten(target, args, {name: self._host_number(value) for name, value in kwargs.items()}, spec)
        if opaque:
            self.nodes.pop()
            made = self.add(_ROWS["opaque"], made.inputs, dict(made.attrs), spec)
        if not isinstance(spec, tuple):
            return made
        return tuple(
            [None if part is None else self.add(_ITEM, (made,), {"index": i}, part) for i, part in enumerate(spec)]
        )


def as_dtype(value: Number, dtype: torch.dtype) -> Number:
    """A Python number as an element of `dtype`; integers wrap around, as in eager's conversion of tensors."""
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_complex:
        return complex(value)
    if isinstance(value, complex):
        raise RuntimeError("value cannot be converted to a real type without overflow")
    if dtype.is_floating_point:
        return float(value)
    limits = torch.iinfo(dtype)
    return (int(value) - limits.min) % (limits.max - limits.min + 1) + limits.min


def require_fits(value: object, dtype: torch.dtype) -> None:
    """Raise where eager does when a number becomes an element: negative integers wrap in an unsigned dtype."""
    if not isinstance(value, int | float) or dtype is torch.bool or dtype.is_complex:
        return
    if dtype.is_floating_point:
        fits = fits_within(value, torch.finfo(dtype).max)
    else:
        limits = torch.iinfo(dtype)
        low = -limits.max if limits.min == 0 and isinstance(value, int) else limits.min
        fits = low <= value <= limits.max
    require(fits, dtype)


def require(fits: bool, dtype: torch.dtype) -> None:
    if not fits:
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")


def check_fits(e: Emit, x: Node, dtype: torch.dtype) -> None:
    """A check in the region that the number in a tensor becomes an element of a floating dtype."""
    if x.op.name == "convert" and x.tensor.dtype is torch.float64:
        x = x.inputs[0]
    given = x.tensor.dtype
    if given is dtype or (given.is_floating_point and torch.finfo(given).max <= torch.finfo(dtype).max):
        return
    size = e.pointwise("abs", e.convert(x, torch.float64))
    inside = e.pointwise("le", size, torch.finfo(dtype).max)
    for other in (e.pointwise("eq", size, math.inf), e.pointwise("ne", size, size)):
        inside = e.pointwise("bitwise_or", inside, other)
    e.node("assert", inside, message=f"value cannot be converted to type {OVERFLOWING[dtype]} without overflow")
