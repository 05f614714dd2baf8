"""Pointwise ATen ops as primitives: arithmetic, comparison, rounding, selection.

    aten.add.Tensor(x, y, alpha=2)     =>     %1 = mul(y, 2)
                                              %2 = add(x, %1)

In reduced precision, an op of several primitives computes in float32 and rounds once, as eager's kernels.
Activations and their gradients are in `activations.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from kiln.graph.ir.build import Number
from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.creation import packed, relaid
from kiln.graph.ops.emit import Emit, Operand
from kiln.graph.ops.promotion import OPMATH, elementwise, float_dtype, promoted, promoting, result_dtype
from kiln.graph.ops.registry import DECOMPOSITIONS, INPLACE, decompose
from kiln.graph.prims.meta import pointwise_spec, preserved
from kiln.runtime.heard_warnings import warn_like
from kiln.symbolic.values import Real
from kiln.tensor.spec import CPU

# fmt: off
FLOAT_UNARY = (  # integers become floating point
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv",
    "lgamma", "digamma",
)
ROUNDING = ("floor", "ceil", "trunc", "round")  # integers are unchanged
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
SAME_BINARY = {  # ATen name: primitive
    "maximum.default": "maximum", "minimum.default": "minimum",
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
    "atan2.default": "atan2",
    "copysign.Tensor": "copysign", "copysign.Scalar": "copysign",
}
LOGICAL = {
    "logical_and.default": "bitwise_and", "logical_or.default": "bitwise_or", "logical_xor.default": "bitwise_xor",
}
# fmt: on


def _float_unary(name: str) -> Callable[..., Node]:
    def rule(e: Emit, x: Node) -> Node:
        return e.pointwise(name, floated(e, x))

    return rule


def _rounding(name: str) -> Callable[..., Node]:
    def rule(e: Emit, x: Node) -> Node:
        return e.pointwise(name, x) if x.tensor.dtype.is_floating_point else copy(e, x)

    return rule


def _binary(name: str, *, floating: bool = False) -> Callable[..., Node]:
    return lambda e, x, y: e.pointwise(name, *promoted(e, x, y, floating=floating))


def _scaling(name: str, *, floating: bool = False) -> Callable[..., Node]:
    """A product or quotient. As in eager, a `y` that is a number, or of rank 0 on the CPU, is not rounded to 16 bits
    first; nor is such an `x` where eager multiplies on a GPU."""

    def rule(e: Emit, x: Operand, y: Operand) -> Node:
        left, right = promoted(e, x, y, floating=floating)
        dtype = left.tensor.dtype
        if dtype in OPMATH and name == "mul" and right.tensor.device != CPU and _is_rounded_to(dtype, x):
            x, y, left = y, x, right
        if dtype not in OPMATH or not _is_rounded_to(dtype, y):
            return e.pointwise(name, left, right)
        wide = OPMATH[dtype]
        factor = e.convert(y, wide) if isinstance(y, Node) else e.number(y, wide, left.tensor.device)
        return e.convert(e.pointwise(name, e.convert(left, wide), factor), dtype)

    return rule


def _is_rounded_to(dtype: torch.dtype, term: Operand) -> bool:
    """Whether the conversion to a 16-bit `dtype` changes `term`, of which eager's kernels take the value.

    Of a tensor on a GPU they do not: they read it in `dtype`.
    """
    if isinstance(term, Node):
        return term.tensor.dtype is not dtype and not term.tensor.rank and term.tensor.device == CPU
    return not isinstance(term, int | float) or torch.tensor(term, dtype=dtype, device="cpu").item() != term


def _logical(name: str) -> Callable[..., Node]:
    return lambda e, x, y: e.pointwise(name, truth(e, x), truth(e, y))


for _name in FLOAT_UNARY:
    DECOMPOSITIONS[f"{_name}.default"] = _float_unary(_name)
DECOMPOSITIONS["neg.default"] = lambda e, x: e.pointwise("neg", x)
for _name in ROUNDING:
    DECOMPOSITIONS[f"{_name}.default"] = _rounding(_name)
for _name, _prim in SAME_BINARY.items():
    DECOMPOSITIONS[_name] = _binary(_prim)
for _name, _prim in FLOAT_BINARY.items():
    DECOMPOSITIONS[_name] = _binary(_prim, floating=True)
for _name in ("mul", "div"):
    DECOMPOSITIONS[f"{_name}.Tensor"] = DECOMPOSITIONS[f"{_name}.Scalar"] = _scaling(_name, floating=_name == "div")
for _name in COMPARISONS:
    DECOMPOSITIONS[f"{_name}.Tensor"] = DECOMPOSITIONS[f"{_name}.Scalar"] = _binary(_name)
for _name, _prim in LOGICAL.items():
    DECOMPOSITIONS[_name] = _logical(_prim)


# Parts of other rules.


def copy(e: Emit, x: Node) -> Node:
    """A copy of `x` in its memory format."""
    return e.node("clone", x, strides=e.preserved_strides(x.tensor))


def times(e: Emit, y: Node, factor: Number) -> Node:
    return y if factor == 1 else e.pointwise("mul", y, factor)


def floated(e: Emit, x: Node) -> Node:
    """`x`, with integers converted to floating point."""
    return e.convert(x, float_dtype(x.tensor.dtype))


def truth(e: Emit, x: Node) -> Node:
    """Nonzero elements as bool."""
    return x if x.tensor.dtype is torch.bool else e.pointwise("ne", x, 0)


def clamped(e: Emit, x: Node, low: Operand | None, high: Operand | None) -> Node:
    """Clamped; the upper bound wins, NaN propagates."""
    if low is not None:
        x = e.pointwise("maximum", x, low)
    return x if high is None else e.pointwise("minimum", x, high)


def require_chances(e: Emit, x: Node, message: str) -> None:
    """Stop unless every element lies between 0 and 1. Not checked on a GPU, where it would wait for the device."""
    if x.tensor.device.type == "cpu":
        inside = e.pointwise("bitwise_and", e.pointwise("ge", x, 0), e.pointwise("le", x, 1))
        e.node("assert", e.node("all", inside, axes=tuple(range(x.tensor.rank))), message=message)


# Arithmetic.


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
    if any(isinstance(term, bool) or (isinstance(term, Node) and term.tensor.dtype is torch.bool) for term in (x, y)):
        raise RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported.")
    return _scaled(e, "sub", x, y, alpha)


decompose("rsub.Tensor", "rsub.Scalar")(lambda e, x, y, alpha=1: sub(e, y, x, alpha))


@decompose("div.Tensor_mode", "div.Scalar_mode")
def div_mode(e: Emit, x: Operand, y: Operand, *, rounding_mode: str | None) -> Node:
    prim = {None: "div", "floor": "floor_div", "trunc": "trunc_div"}[rounding_mode]
    left, right = promoted(e, x, y, floating=rounding_mode is None)
    if prim == "div" or left.tensor.dtype not in OPMATH or isinstance(y, Node):
        return e.pointwise(prim, left, right)
    # By a number: eager does not round it first, which would move the steps.
    wide = OPMATH[left.tensor.dtype]
    return e.convert(e.pointwise(prim, e.convert(left, wide), y), left.tensor.dtype)


decompose("floor_divide.default", "floor_divide.Scalar")(lambda e, x, y: div_mode(e, x, y, rounding_mode="floor"))


@decompose("pow.Tensor_Scalar")
def pow_scalar(e: Emit, x: Node, exponent: Number) -> Node:
    dtype = result_dtype((x, exponent))
    if not (dtype.is_floating_point or dtype.is_complex) and not isinstance(exponent, complex) and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    base = e.convert(x, dtype)
    if exponent == 0:
        ones = e.full(1, base.tensor.sizes, dtype, base.tensor.device)
        return relaid(e, ones, e.pointwise("neg", base).tensor.strides)
    powers = _POWERS if dtype.is_floating_point and not isinstance(exponent, complex) else {}
    if dtype is torch.float16 and base.tensor.device.type == "cpu":
        powers = {number: simple for number, simple in powers.items() if number not in _ROOTS}
        e.require_fits(exponent, dtype)
    wide = OPMATH.get(dtype, dtype)
    if exponent in powers:
        return e.convert(powers[exponent](e, e.convert(base, wide)), dtype)
    if exponent == 2:
        return e.pointwise("mul", base, base)
    power = e.pointwise("pow", base, exponent)
    if isinstance(exponent, Real):
        for number in filter(powers.__contains__, _ROOTS):  # of -0 and -inf another number than the power
            is_root = e.pointwise("eq", e.number(exponent, torch.float64, base.tensor.device), number)
            root = e.convert(powers[number](e, e.convert(base, wide)), dtype)
            power = e.pointwise("where", is_root, root, power)
    return power


decompose("pow.Tensor_Tensor")(lambda e, x, exponent: e.pointwise("pow", *promoted(e, x, exponent)))
decompose("pow.Scalar")(lambda e, x, exponent: packed(e, e.pointwise("pow", *promoted(e, x, exponent))))


INPLACE["pow_.Scalar"] = "aten.pow.Tensor_Scalar"


def _square(e: Emit, x: Node) -> Node:
    return e.pointwise("mul", x, x)


_POWERS: dict[Number, Callable[[Emit, Node], Node]] = {
    0.5: lambda e, x: e.pointwise("sqrt", x),
    1: copy,
    2: _square,
    3: lambda e, x: e.pointwise("mul", _square(e, x), x),
    -0.5: lambda e, x: e.pointwise("rsqrt", x),
    -1: lambda e, x: e.pointwise("reciprocal", x),
    -2: lambda e, x: e.pointwise("reciprocal", _square(e, x)),
}
"""Exponents for which eager's kernel uses a cheaper function."""
_ROOTS = (0.5, -0.5)
"""Those that for float16 on a CPU are powers as well."""


DECOMPOSITIONS["square.default"] = lambda e, x: pow_scalar(e, x, 2)


@decompose("addcmul.default")
@promoting(3)
@elementwise
def addcmul(e: Emit, x: Node, y: Node, z: Node, *, value: Number = 1) -> Node:
    return e.pointwise("add", x, e.pointwise("mul", times(e, y, value), z))


@decompose("addcdiv.default")
@promoting(3, floating=True)
@elementwise
def addcdiv(e: Emit, x: Node, y: Node, z: Node, *, value: Number = 1) -> Node:
    return e.pointwise("add", x, e.pointwise("div", times(e, y, value), z))


@decompose("lerp.Scalar", "lerp.Tensor")
def lerp(e: Emit, start: Node, end: Node, weight: Operand) -> Node:
    dtype = start.tensor.dtype
    same = [node for node in (end, weight) if isinstance(node, Node) and (node is end or node.tensor.rank)]
    for node in same:
        if node.tensor.dtype is not dtype:
            raise RuntimeError(f"lerp: expected dtype {dtype} but got dtype {node.tensor.dtype}")
    return _lerp(e, start, end, e.convert(weight, dtype) if isinstance(weight, Node) else weight)


@elementwise
def _lerp(e: Emit, start: Node, end: Node, weight: Operand) -> Node:
    """From the nearer end, as in eager, so that weight 1 gives `end`."""
    p, way = e.pointwise, e.pointwise("sub", end, start)
    if isinstance(weight, Real):  # which end is nearer, the call decides
        weight = e.number(weight, start.tensor.dtype, start.tensor.device)
    if isinstance(weight, Node):
        from_start = p("add", start, p("mul", way, weight))
        rest = p("sub", e.number(1, weight.tensor.dtype, weight.tensor.device), weight)
        from_end = p("sub", end, p("mul", way, rest))
        return p("where", p("lt", p("abs", weight), 0.5), from_start, from_end)
    if abs(weight) < 0.5:
        return p("add", start, p("mul", way, weight))
    return p("sub", end, p("mul", way, 1 - weight))


@decompose("abs.default")
def abs_(e: Emit, x: Node) -> Node:
    dtype = x.tensor.dtype
    if dtype.is_complex:
        return e.library("aten.abs.default", (x,), {}, preserved(e.oracle, x.tensor).with_dtype(dtype.to_real()))
    return copy(e, x) if dtype is torch.bool else e.pointwise("abs", x)


@decompose("_conj.default")
def conj(e: Emit, x: Node | Number) -> Node:
    """In memory of its own: that it is no view of its argument may not be seen (`mode.conjugates`).

    A number of the program arrives as a number.
    """
    if not isinstance(x, Node):
        return e.number(x.conjugate(), torch.complex128, CPU)
    return e.library("aten._conj_physical.default", (x,), {}, preserved(e.oracle, x.tensor))


@decompose("sign.default", "sgn.default")
def sign(e: Emit, x: Node) -> Node:
    if x.tensor.dtype.is_complex:
        return e.library("aten.sgn.default", (x,), {}, preserved(e.oracle, x.tensor))
    return copy(e, x) if x.tensor.dtype is torch.bool else e.pointwise("sign", x)


DECOMPOSITIONS["positive.default"] = copy


decompose("frac.default")(lambda e, x: e.pointwise("sub", x, e.pointwise("trunc", x)))


@decompose("round.decimals")
@elementwise
def round_decimals(e: Emit, x: Node, *, decimals: int) -> Node:
    wide = torch.finfo(x.tensor.dtype)
    digits = abs(decimals)
    scale = 10.0**digits if digits <= math.log10(wide.max) else math.inf
    up, down = ("mul", "div") if decimals > 0 else ("div", "mul")
    return e.pointwise(down, e.pointwise("round", e.pointwise(up, x, scale)), scale)


DECOMPOSITIONS["deg2rad.default"] = lambda e, x: _scaling("mul", floating=True)(e, x, math.pi / 180)
DECOMPOSITIONS["rad2deg.default"] = lambda e, x: _scaling("mul", floating=True)(e, x, 180 / math.pi)


# Selection, logic, classification.


@decompose("where.self")
def where(e: Emit, condition: Node, x: Operand, y: Operand) -> Node:
    if condition.tensor.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(f"where expected condition to be a boolean tensor, but got {condition.tensor.dtype}")
    if condition.tensor.dtype is torch.uint8:
        warn_like(lambda: torch.where(torch.zeros(1, dtype=torch.uint8, device=CPU), 0, 0))
    for number in (x, y):
        e.require_fits(number, result_dtype([x, y]))
    return e.pointwise("where", truth(e, condition), *promoted(e, x, y))


@decompose("clamp.default", "clamp.Tensor")
def clamp(e: Emit, x: Node, min: Operand | None = None, max: Operand | None = None) -> Node:
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    dtype = result_dtype([operand for operand in (x, min, max) if operand is not None])
    if dtype is torch.bool:
        raise NotImplementedError('"clamp" not implemented for flags')
    for bound in (min, max):
        if isinstance(bound, float) and math.isnan(bound):
            raise UnsupportedOp(op="aten.clamp.default", reason="for a bound of NaN the result depends on its kernel")
        e.require_fits(bound, dtype)
    low, high = (e.convert(bound, dtype) if isinstance(bound, Node) else bound for bound in (min, max))
    return clamped(e, e.convert(x, dtype), low, high)


for _name in ("default", "Tensor"):
    DECOMPOSITIONS[f"clamp_min.{_name}"] = lambda e, x, low: clamp(e, x, low)
    DECOMPOSITIONS[f"clamp_max.{_name}"] = lambda e, x, high: clamp(e, x, None, high)


decompose("logical_not.default")(lambda e, x: e.pointwise("logical_not", truth(e, x)))


@decompose("bitwise_not.default")
def bitwise_not(e: Emit, x: Node) -> Node:
    return e.pointwise("logical_not" if x.tensor.dtype is torch.bool else "bitwise_not", x)


def _never(e: Emit, x: Node) -> Node:
    """False for each element."""
    return relaid(e, e.full(False, x.tensor.sizes, torch.bool, x.tensor.device), e.preserved_strides(x.tensor))


def _classified(name: str, *operand: Number) -> Callable[..., Node]:
    def rule(e: Emit, x: Node) -> Node:
        if x.tensor.dtype.is_complex:
            return e.library(f"aten.{name}.default", (x,), {}, preserved(e.oracle, x.tensor).with_dtype(torch.bool))
        return e.pointwise(name, x, *operand) if x.tensor.dtype.is_floating_point else _never(e, x)

    return rule


DECOMPOSITIONS["isnan.default"] = _classified("isnan")
DECOMPOSITIONS["isinf.default"] = _classified("isinf")
DECOMPOSITIONS["isposinf.default"] = _classified("eq", math.inf)
DECOMPOSITIONS["isneginf.default"] = _classified("eq", -math.inf)


@decompose("signbit.default")
def signbit(e: Emit, x: Node) -> Node:
    if x.tensor.dtype is torch.bool:
        return _never(e, x)
    return e.pointwise("signbit", x) if x.tensor.dtype.is_floating_point else e.pointwise("lt", x, 0)


@decompose("nan_to_num.default")
def nan_to_num(
    e: Emit, x: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Node:
    dtype = x.tensor.dtype
    if not dtype.is_floating_point:
        return copy(e, x)
    p, limits = e.pointwise, torch.finfo(dtype)
    low, high = (limits.min if neginf is None else neginf), (limits.max if posinf is None else posinf)
    finite = p("where", p("eq", x, -math.inf), e.number(low, dtype, x.tensor.device), x)
    finite = p("where", p("eq", finite, math.inf), e.number(high, dtype, x.tensor.device), finite)
    return p("where", p("isnan", x), e.number(nan or 0.0, dtype, x.tensor.device), finite)


@decompose("heaviside.default")
def heaviside(e: Emit, x: Node, values: Node) -> Node:
    if x.tensor.dtype is not values.tensor.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    p, zero = e.pointwise, e.number(0, x.tensor.dtype, x.tensor.device)
    step = e.convert(p("lt", zero, x), x.tensor.dtype)
    return p("where", p("eq", x, 0), values, p("where", p("isnan", x), zero, step))


# Functions of several primitives.


def _times_logarithm(logarithm: str) -> Callable[..., Node]:
    """`x * logarithm(y)`, 0 where x is 0."""

    @promoting(2, floating=True)
    @elementwise
    def rule(e: Emit, x: Node, y: Node) -> Node:
        p, zero = e.pointwise, e.number(0, x.tensor.dtype, x.tensor.device)
        product = p("where", p("eq", x, 0), zero, p("mul", x, p(logarithm, y)))
        return p("where", p("isnan", y), y, product)

    return rule


decompose("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self")(_times_logarithm("log"))
decompose("special_xlog1py.default", "special_xlog1py.other_scalar", "special_xlog1py.self_scalar")(
    _times_logarithm("log1p")
)


def _added_exponentials(base: int | None) -> Callable[..., Node]:
    """The logarithm of a sum of powers of 2, or of e."""

    @promoting(2)
    @elementwise
    def rule(e: Emit, x: Node, y: Node) -> Node:
        p = e.pointwise
        top, gap = p("maximum", x, y), p("abs", p("sub", x, y))
        tail = p("log1p", p("exp2" if base == 2 else "exp", p("neg", gap)))
        if base == 2:
            tail = p("mul", tail, 1 / math.log(2))
        same = p("bitwise_and", p("isinf", x), p("eq", x, y))
        return p("where", same, x, p("add", top, tail))

    return rule


DECOMPOSITIONS["logaddexp.default"] = _added_exponentials(None)
DECOMPOSITIONS["logaddexp2.default"] = _added_exponentials(2)


@decompose("special_entr.default")
@promoting(1, floating=True)
@elementwise
def entr(e: Emit, x: Node) -> Node:
    p, device = e.pointwise, x.tensor.device
    inside = p("where", p("eq", x, 0), e.number(0, x.tensor.dtype, device), p("neg", p("mul", x, p("log", x))))
    below = p("where", p("lt", x, 0), e.number(-math.inf, x.tensor.dtype, device), inside)
    return p("where", p("isnan", x), x, below)


@decompose("ldexp.Tensor")
def ldexp(e: Emit, x: Node, y: Node) -> Node:
    """By an integer, eager changes the exponent of a float: a power of two may overflow where the result does not."""
    dtype = y.tensor.dtype
    if x.tensor.dtype.is_floating_point and not (dtype.is_floating_point or dtype.is_complex):
        if dtype is torch.bool:
            raise NotImplementedError('"ldexp" not implemented for an exponent of flags')
        spec = pointwise_spec(e.oracle, [x.tensor, y.tensor], x.tensor.dtype)
        return e.library("aten.ldexp.Tensor", (x, y), {}, spec)
    left, right = promoted(e, x, e.pointwise("exp2", floated(e, y)), floating=True)
    return e.pointwise("mul", left, right)


@decompose("sinc.default")
@promoting(1, floating=True)
@elementwise
def sinc(e: Emit, x: Node) -> Node:
    p, unit = e.pointwise, e.number(1, x.tensor.dtype, x.tensor.device)
    angle = p("mul", x, math.pi)
    return p("where", p("eq", x, 0), unit, p("div", p("sin", angle), angle))


@decompose("logit.default")
@promoting(1, floating=True)
@elementwise
def logit(e: Emit, x: Node, eps: float | Real | None = None) -> Node:
    p = e.pointwise
    inside = x
    if isinstance(eps, Real) or (
        eps is not None and eps > 0.5
    ):  # the bounds have changed places: an element below the first is set to it
        low, high = (e.number(bound, x.tensor.dtype, x.tensor.device) for bound in (eps, 1 - eps))
        inside = p("where", p("lt", x, low), low, p("where", p("gt", x, high), high, x))
    elif eps is not None and eps >= 0:
        inside = clamped(e, x, eps, 1 - eps)
    return p("log", p("div", inside, p("sub", e.number(1, x.tensor.dtype, x.tensor.device), inside)))
