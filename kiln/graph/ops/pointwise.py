"""Pointwise ATen ops as primitives.

    aten.add.Tensor(x, y, alpha=2)     =>     %1 = mul(y, 2)
                                              %2 = add(x, %1)

Reduced precision: an op of several primitives computes in float32 and rounds once, as eager's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Emit, Number, Operand
from kiln.graph.ops.promotion import OPMATH, float_dtype, opmath, promoted, result_dtype
from kiln.graph.ops.registry import DECOMPOSITIONS, decompose

# fmt: off
FLOAT_UNARY = (  # integers become floating point
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv",
    "lgamma", "digamma",
)
SAME_UNARY = ("neg", "abs", "bitwise_not")
ROUNDING = ("floor", "ceil", "trunc", "round")  # integers stay as they are
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
SAME_BINARY = {  # ATen name: primitive
    "mul.Tensor": "mul", "maximum.default": "maximum", "minimum.default": "minimum",
    "fmax.default": "fmax", "fmin.default": "fmin", "fmod.Tensor": "fmod", "fmod.Scalar": "fmod",
    "remainder.Tensor": "remainder", "remainder.Scalar": "remainder", "remainder.Scalar_Tensor": "remainder",
    "bitwise_and.Tensor": "bitwise_and", "bitwise_and.Scalar": "bitwise_and",
    "bitwise_or.Tensor": "bitwise_or", "bitwise_or.Scalar": "bitwise_or",
    "bitwise_xor.Tensor": "bitwise_xor", "bitwise_xor.Scalar": "bitwise_xor",
    "__and__.Tensor": "bitwise_and", "__and__.Scalar": "bitwise_and",
    "__or__.Tensor": "bitwise_or", "__or__.Scalar": "bitwise_or",
    "__xor__.Tensor": "bitwise_xor", "__xor__.Scalar": "bitwise_xor",
    "bitwise_left_shift.Tensor": "shift_left", "bitwise_left_shift.Tensor_Scalar": "shift_left",
    "bitwise_right_shift.Tensor": "shift_right", "bitwise_right_shift.Tensor_Scalar": "shift_right",
    "__lshift__.Tensor": "shift_left", "__lshift__.Scalar": "shift_left",
    "__rshift__.Tensor": "shift_right", "__rshift__.Scalar": "shift_right",
    "nextafter.default": "nextafter", "hypot.default": "hypot",
}
FLOAT_BINARY = {
    "div.Tensor": "div", "div.Scalar": "div", "atan2.default": "atan2",
    "copysign.Tensor": "copysign", "copysign.Scalar": "copysign",
}
# fmt: on


def _float_unary(name: str) -> Callable[..., Node]:
    def rule(e: Emit, x: Node) -> Node:
        return e.pointwise(name, e.convert(x, float_dtype(x.tensor.dtype)))

    return rule


def _same_unary(name: str) -> Callable[..., Node]:
    return lambda e, x: e.pointwise(name, x)


def _rounding(name: str) -> Callable[..., Node]:
    def rule(e: Emit, x: Node) -> Node:
        return e.pointwise(name, x) if x.tensor.dtype.is_floating_point else copy(e, x)

    return rule


def _binary(name: str, *, floating: bool = False) -> Callable[..., Node]:
    return lambda e, x, y: e.pointwise(name, *promoted(e, x, y, floating=floating))


for _name in FLOAT_UNARY:
    DECOMPOSITIONS[f"{_name}.default"] = _float_unary(_name)
for _name in SAME_UNARY:
    DECOMPOSITIONS[f"{_name}.default"] = _same_unary(_name)
for _name in ROUNDING:
    DECOMPOSITIONS[f"{_name}.default"] = _rounding(_name)
for _name, _prim in SAME_BINARY.items():
    DECOMPOSITIONS[_name] = _binary(_prim)
for _name, _prim in FLOAT_BINARY.items():
    DECOMPOSITIONS[_name] = _binary(_prim, floating=True)
for _name in COMPARISONS:
    DECOMPOSITIONS[f"{_name}.Tensor"] = DECOMPOSITIONS[f"{_name}.Scalar"] = _binary(_name)


def copy(e: Emit, x: Node) -> Node:
    """A fresh tensor with the values and the format of `x`."""
    spec = x.tensor
    return e.node("clone", x, strides=e.preserved_strides(spec))


def times(e: Emit, y: Node, factor: Number) -> Node:
    return y if factor == 1 else e.pointwise("mul", y, factor)


def _scaled(e: Emit, name: str, x: Operand, y: Operand, alpha: Number) -> Node:
    """`x <name> alpha * y`; reduced precision is rounded once."""
    left, right = promoted(e, x, y)
    dtype = left.tensor.dtype
    if alpha == 1:
        return e.pointwise(name, left, right)
    wide = OPMATH.get(dtype, dtype)
    return e.convert(e.pointwise(name, e.convert(left, wide), times(e, e.convert(right, wide), alpha)), dtype)


@decompose("add.Tensor", "add.Scalar")
def add(e: Emit, x: Operand, y: Operand, alpha: Number = 1) -> Node:
    if result_dtype((x, y)) is torch.bool:
        return e.pointwise("bitwise_or", *promoted(e, x, y))
    return _scaled(e, "add", x, y, alpha)


@decompose("sub.Tensor", "sub.Scalar")
def sub(e: Emit, x: Operand, y: Operand, alpha: Number = 1) -> Node:
    return _scaled(e, "sub", x, y, alpha)


@decompose("rsub.Tensor", "rsub.Scalar")
def rsub(e: Emit, x: Operand, y: Operand, alpha: Number = 1) -> Node:
    return _scaled(e, "sub", y, x, alpha)


@decompose("mul.Scalar")
def mul_scalar(e: Emit, x: Node, y: Number) -> Node:
    return e.pointwise("mul", *promoted(e, x, y))


@decompose("relu.default")
def relu(e: Emit, x: Node) -> Node:
    return e.pointwise("maximum", x, 0)


@decompose("gelu.default")
def gelu(e: Emit, x: Node, *, approximate: str = "none") -> Node:
    p, wide = e.pointwise, opmath(e, x)
    if approximate == "tanh":
        cubed = p("mul", p("mul", wide, wide), wide)
        inner = p("mul", p("add", wide, p("mul", cubed, 0.044715)), 0.7978845608028654)
        curve = p("tanh", inner)
    else:
        curve = p("erf", p("mul", wide, 0.7071067811865476))
    return e.convert(p("mul", p("mul", wide, 0.5), p("add", curve, 1.0)), x.tensor.dtype)
