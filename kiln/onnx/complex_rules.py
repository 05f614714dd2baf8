"""Complex numbers, which no runtime of ONNX computes with, as pairs of real tensors.

    mul(x, y)                     (x.re y.re - x.im y.im, x.re y.im + x.im y.re)
    view(x, sizes=..)             each part by the rule of real tensors
    _fft_r2c(x, (1,), 0, True)    DFT(Unsqueeze(x, -1); onesided=1), taken apart

Outside of the model (inputs, weights, results) a complex tensor is a real one with a last dimension of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from kiln.graph.prims.table import Cells
from kiln.onnx.call import OnnxCaller
from kiln.onnx.rules import ONNX_RULES, atan2, bordered, hypot, operator, slice_
from kiln.symbolic import Expr, Int, product


class ComplexParts(NamedTuple):
    """The names of the real and the imaginary part."""

    re: str
    im: str


ComplexRule = Callable[..., ComplexParts | str]
rule = COMPLEX_RULES = Cells[ComplexRule]("complex rules")
"""By the name of the primitive, or of the overload without `aten.`: of calls with a complex argument or result."""


def by_parts(name: str) -> ComplexRule:
    """The rule for real tensors, on each part; real arguments (a condition, an index) are the same for both."""

    def run(o: OnnxCaller, *inputs: ComplexParts | str, **attrs: object) -> ComplexParts:
        made = []
        for part in (0, 1):
            names = [value[part] if isinstance(value, ComplexParts) else value for value in inputs]
            made.append(str(ONNX_RULES[name](o, *names, **attrs)))
        return ComplexParts(*made)

    return run


# fmt: off
for _name in (
    "add", "sub", "neg", "where", "sum", "cumsum", "expand", "permute", "view", "reshape", "unsqueeze", "squeeze",
    "slice", "select", "as_strided", "diagonal", "unfold", "clone", "cat", "flip", "gather", "index", "index_put",
    "select_scatter", "slice_scatter", "full",
):
    rule[_name] = by_parts(_name)
# fmt: on


# Creation and conversion.


@rule("constant")
def constant(o: OnnxCaller, *, value: complex, dtype: torch.dtype, device: torch.device) -> ComplexParts:
    if not isinstance(value, complex | float | int):
        raise o.refused("a complex number that is computed")
    number = complex(value)
    return ComplexParts(o.number(number.real, dtype.to_real()), o.number(number.imag, dtype.to_real()))


@rule("empty")
def empty(o: OnnxCaller, *, sizes: Sequence[Int], **more: object) -> ComplexParts:
    zeros = o("Expand", o.number(0, o.spec.dtype), o.ints(sizes))
    return ComplexParts(zeros, zeros)


@rule("convert")
def convert(o: OnnxCaller, x: ComplexParts | str, *, dtype: torch.dtype) -> ComplexParts | str:
    if not dtype.is_complex:
        return str(ONNX_RULES["convert"](o, part_of(x, 0), dtype=dtype))
    parts = x if isinstance(x, ComplexParts) else (x, o.number(0, dtype.to_real()))
    re, im = [o.cast(part, dtype.to_real()) for part in parts]
    return ComplexParts(re, im if isinstance(x, ComplexParts) else o("Mul", re, im))


def part_of(x: ComplexParts | str, place: int) -> str:
    return x[place] if isinstance(x, ComplexParts) else x


@rule("complex.default")
def from_parts(o: OnnxCaller, re: str, im: str) -> ComplexParts:
    sizes = o.ints(o.spec.sizes)
    return ComplexParts(o("Expand", re, sizes), o("Expand", im, sizes))


@rule("polar.default")
def polar(o: OnnxCaller, length: str, angle: str) -> ComplexParts:
    return ComplexParts(o("Mul", length, o("Cos", angle)), o("Mul", length, o("Sin", angle)))


@rule("view_dtype")
def view_dtype(o: OnnxCaller, x: ComplexParts | str, *, dtype: torch.dtype) -> ComplexParts | str:
    if isinstance(x, ComplexParts):
        return o("Reshape", joined(o, x), o.ints(o.spec.sizes), allowzero=1)
    return divided(o, o("Reshape", x, o.ints((*o.spec.sizes, 2)), allowzero=1))


def joined(o: OnnxCaller, x: ComplexParts) -> str:
    """One tensor with a last dimension of two."""
    return o("Concat", *[o("Unsqueeze", part, o.ints((-1,))) for part in x], axis=-1)


def divided(o: OnnxCaller, x: str) -> ComplexParts:
    return ComplexParts(*[o("Gather", x, o.number(place, torch.int64), axis=-1) for place in (0, 1)])


@rule("pad")
def pad(
    o: OnnxCaller, x: ComplexParts, value: ComplexParts, *, low: Sequence[Int], high: Sequence[Int]
) -> ComplexParts:
    given = o.node.inputs[1]
    if given.op.name != "constant":
        raise o.refused("a border that is computed")
    number = complex(given.attrs["value"])
    return ComplexParts(bordered(o, x.re, number.real, low, high), bordered(o, x.im, number.imag, low, high))


# Arithmetic.


def bilinear(of_reals: Callable[..., object]) -> Callable[..., ComplexParts]:
    """A product, of products of the parts."""

    def run(o: OnnxCaller, x: ComplexParts, y: ComplexParts) -> ComplexParts:
        re = o("Sub", str(of_reals(o, x.re, y.re)), str(of_reals(o, x.im, y.im)))
        return ComplexParts(re, o("Add", str(of_reals(o, x.re, y.im)), str(of_reals(o, x.im, y.re))))

    return run


multiplied, matrix_product = bilinear(operator("Mul")), bilinear(operator("MatMul"))
rule["mul"] = multiplied
for _name in ("mm.default", "bmm.default", "mv.default", "dot.default"):
    rule[_name] = matrix_product


@rule("addmm.default", "baddbmm.default", "addmv.default")
def added(
    o: OnnxCaller, bias: ComplexParts, x: ComplexParts, y: ComplexParts, *, beta: complex = 1, alpha: complex = 1
) -> ComplexParts:
    if (beta, alpha) != (1, 1):
        raise o.refused("a product of complex numbers with factors")
    return ComplexParts(*[o("Add", *parts) for parts in zip(matrix_product(o, x, y), bias, strict=True)])


@rule("div")
def div(o: OnnxCaller, x: ComplexParts, y: ComplexParts) -> ComplexParts:
    """Both scaled so that squares stay in range."""
    size = o("Max", o("Abs", y.re), o("Abs", y.im))
    c, d = [o("Div", part, size) for part in y]
    whole = o("Mul", size, o("Add", o("Mul", c, c), o("Mul", d, d)))
    return ComplexParts(*[o("Div", part, whole) for part in multiplied(o, x, ComplexParts(c, o("Neg", d)))])


@rule("reciprocal")
def reciprocal(o: OnnxCaller, x: ComplexParts) -> ComplexParts:
    return div(o, ComplexParts(o.number(1), o.number(0)), x)


@rule("_conj_physical.default", "_conj.default", "conj_physical.default")
def conj(o: OnnxCaller, x: ComplexParts) -> ComplexParts:
    return ComplexParts(x.re, o("Neg", x.im))


@rule("abs", "abs.default")
def absolute(o: OnnxCaller, x: ComplexParts) -> str:
    return hypot(o, x.re, x.im)


@rule("angle.default")
def angle(o: OnnxCaller, x: ComplexParts) -> str:
    return atan2(o, x.im, x.re)


@rule("sgn.default")
def sgn(o: OnnxCaller, x: ComplexParts) -> ComplexParts:
    size = absolute(o, x)
    is_zero = o("Equal", size, o.number(0))
    return ComplexParts(*[o("Where", is_zero, part, o("Div", part, size)) for part in x])


@rule("exp")
def exp(o: OnnxCaller, x: ComplexParts) -> ComplexParts:
    return polar(o, o("Exp", x.re), x.im)


@rule("log")
def log(o: OnnxCaller, x: ComplexParts) -> ComplexParts:
    return ComplexParts(o("Log", absolute(o, x)), angle(o, x))


@rule("sqrt")
def sqrt(o: OnnxCaller, x: ComplexParts) -> ComplexParts:
    """From the part that does not cancel: t = sqrt((|x| + |re|) / 2), and |im| / 2t."""
    t = o("Sqrt", o("Mul", o("Add", absolute(o, x), o("Abs", x.re)), o.number(0.5)))
    rest = o("Div", o("Abs", x.im), o("Mul", t, o.number(2)))
    rest = o("Where", o("Equal", t, o.number(0)), t, rest)
    is_left = o("Less", x.re, o.number(0))
    size = o("Where", is_left, t, rest)
    return ComplexParts(o("Where", is_left, rest, t), o("Where", o("Less", x.im, o.number(0)), o("Neg", size), size))


@rule("rsqrt")
def rsqrt(o: OnnxCaller, x: ComplexParts) -> ComplexParts:
    return reciprocal(o, sqrt(o, x))


@rule("pow")
def power(o: OnnxCaller, x: ComplexParts, y: ComplexParts) -> ComplexParts:
    """exp(y log x); of zero, zero."""
    is_zero = o("Equal", absolute(o, x), o.number(0))
    whole = exp(o, multiplied(o, y, log(o, ComplexParts(o("Where", is_zero, o.number(1), x.re), x.im))))
    return ComplexParts(*[o("Where", is_zero, o.number(0), part) for part in whole])


def of_angle(re: tuple[str, str], im: tuple[str, str], sign: int) -> ComplexRule:
    """Products of a function of the real and one of the imaginary part."""

    def run(o: OnnxCaller, x: ComplexParts) -> ComplexParts:
        made = [o("Mul", o(of_re, x.re), o(of_im, x.im)) for of_re, of_im in (re, im)]
        return ComplexParts(made[0], made[1] if sign > 0 else o("Neg", made[1]))

    return run


rule["sin"], rule["cos"] = of_angle(("Sin", "Cosh"), ("Cos", "Sinh"), 1), of_angle(("Cos", "Cosh"), ("Sin", "Sinh"), -1)
rule["sinh"] = of_angle(("Sinh", "Cos"), ("Cosh", "Sin"), 1)
rule["cosh"] = of_angle(("Cosh", "Cos"), ("Sinh", "Sin"), 1)


@rule("prod")
def prod(o: OnnxCaller, x: ComplexParts, *, axes: tuple[int, ...]) -> ComplexParts:
    """Of lengths, and the sum of angles."""
    length = str(ONNX_RULES["prod"](o, absolute(o, x), axes=axes))
    return polar(o, length, str(ONNX_RULES["sum"](o, angle(o, x), axes=axes)))


# Questions.


def question(op: str, of_parts: str) -> ComplexRule:
    def run(o: OnnxCaller, *inputs: ComplexParts) -> str:
        return o(of_parts, *[o(op, *[value[part] for value in inputs]) for part in (0, 1)])

    return run


rule["eq"], rule["isnan.default"] = question("Equal", "And"), question("IsNaN", "Or")
rule["isinf.default"] = question("IsInf", "Or")


@rule("ne")
def ne(o: OnnxCaller, x: ComplexParts, y: ComplexParts) -> str:
    return o("Not", str(COMPLEX_RULES["eq"](o, x, y)))


# Fourier transforms: `normalization` 0 is a plain sum, 1 divides by the root of the number of points, 2 by it.


def transformed(
    o: OnnxCaller, x: ComplexParts | str, axis: int, is_inverse: bool, is_onesided: bool = False
) -> ComplexParts:
    """Along one axis. ONNX divides an inverse transform by its length."""
    signal = joined(o, x) if isinstance(x, ComplexParts) else o("Unsqueeze", x, o.ints((-1,)))
    batch = o("Unsqueeze", signal, o.ints((0,)))
    found = o("DFT", batch, axis=axis + 1, inverse=int(is_inverse), onesided=int(is_onesided))
    return divided(o, o("Squeeze", found, o.ints((0,))))


def scaled(
    o: OnnxCaller, x: ComplexParts, lengths: Sequence[Int], normalization: int, is_divided: bool
) -> ComplexParts:
    """`is_divided`: the parts are divided by the product of `lengths` already."""
    power = (0.0, -0.5, -1.0)[normalization] + is_divided
    if power == 0:
        return x
    count = product(lengths)
    if isinstance(count, Expr):
        factor = o("Pow", o.cast(o.scalar(count), o.spec.dtype), o.number(power, o.spec.dtype))
    else:
        factor = o.number(float(count) ** power, o.spec.dtype)
    return ComplexParts(o("Mul", x.re, factor), o("Mul", x.im, factor))


def axes_of(o: OnnxCaller, dims: Sequence[int]) -> list[int]:
    return [dim % o.input().rank for dim in dims]


@rule("_fft_c2c.default")
def fft(o: OnnxCaller, x: ComplexParts, dims: Sequence[int], normalization: int, forward: bool) -> ComplexParts:
    axes = axes_of(o, dims)
    for axis in axes:
        x = transformed(o, x, axis, not forward)
    return scaled(o, x, [o.input().sizes[axis] for axis in axes], normalization, not forward)


@rule("_fft_r2c.default")
def fft_of_reals(o: OnnxCaller, x: str, dims: Sequence[int], normalization: int, onesided: bool) -> ComplexParts:
    *others, last = axes_of(o, dims)
    found = transformed(o, x, last, False, onesided)
    for axis in others:
        found = transformed(o, found, axis, False)
    return scaled(o, found, [o.input().sizes[axis] for axis in (*others, last)], normalization, False)


@rule("_fft_c2r.default")
def fft_to_reals(o: OnnxCaller, x: ComplexParts, dims: Sequence[int], normalization: int, last_dim_size: Int) -> str:
    """The half that is not there is the conjugate of the other, backwards."""
    *others, last = axes_of(o, dims)
    for axis in others:
        x = transformed(o, x, axis, True)
    low, middle = [
        ComplexParts(*[slice_(o, part, axis=last, start=start, stop=stop, step=1) for part in x])
        for start, stop in ((0, last_dim_size // 2 + 1), (1, (last_dim_size + 1) // 2))
    ]
    high = conj(o, ComplexParts(*[str(ONNX_RULES["flip"](o, part, axes=(last,))) for part in middle]))
    whole = ComplexParts(*[o("Concat", *parts, axis=last) for parts in zip(low, high, strict=True)])
    found = transformed(o, whole, last, True)
    lengths = [*[o.input().sizes[axis] for axis in others], last_dim_size]
    return scaled(o, found, lengths, normalization, True).re
