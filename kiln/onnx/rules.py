"""The column `onnx`: each primitive as calls of ONNX's operators (opset 18).

    rsqrt(x)                      Reciprocal(Sqrt(x))
    sum(x, axes=(1,))             ReduceSum(x, [1]; keepdims=0)

Absent are primitives that have no short form in opset 18; longer ones are in `special_rules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Column
from kiln.onnx.call import OnnxCaller, OnnxRule
from kiln.onnx.dtypes import ONNX_DTYPES
from kiln.symbolic import Expr, Int, sym_max
from kiln.symbolic.values import Real
from kiln.tensor.spec import TensorSpec

ONNX_RULES: Column[OnnxRule] = PRIMS.column("onnx")
rule = ONNX_RULES
LOG2_E, LOG10_E = 1.4426950408889634, 0.4342944819032518
LAST = 2**63 - 1  # an end beyond every axis
MOST_NUMBERS = 4096
"""Of positions that are written one by one."""


def operator(op: str) -> OnnxRule:
    def run(o: OnnxCaller, *inputs: str) -> str:
        return o(op, *inputs)

    return run


# fmt: off
for _name, _op in {
    "neg": "Neg", "abs": "Abs", "sub": "Sub", "div": "Div", "pow": "Pow",
    "floor": "Floor", "ceil": "Ceil", "round": "Round", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "sigmoid": "Sigmoid", "erf": "Erf", "eq": "Equal", "lt": "Less",
    "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "isnan": "IsNaN", "isinf": "IsInf",
    "logical_not": "Not",
}.items():
    rule[_name] = operator(_op)
# fmt: on


# Pointwise.


rule("ne")(lambda o, x, y: o("Not", o("Equal", x, y)))
rule("rsqrt")(lambda o, x: o("Reciprocal", o("Sqrt", x)))
rule("exp2")(lambda o, x: o("Pow", o.number(2), x))
rule("log2")(lambda o, x: o("Mul", o("Log", x), o.number(LOG2_E)))
rule("log10")(lambda o, x: o("Mul", o("Log", x), o.number(LOG10_E)))
# tanh(x/2) (exp(x) + 1).
rule("expm1")(lambda o, x: o("Mul", o("Tanh", o("Mul", x, o.number(0.5))), o("Add", o("Exp", x), o.number(1))))


@rule("log1p")
def log1p(o: OnnxCaller, x: str) -> str:
    """log(u) x / (u - 1), where u = 1 + x is rounded."""
    u, one = o("Add", x, o.number(1)), o.number(1)
    is_x = o("Or", o("Equal", u, one), o("Equal", u, o.number(float("inf"))))
    return o("Where", is_x, x, o("Mul", o("Log", u), o("Div", x, o("Sub", u, one))))


ERFC = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
    -1.26551223,
)  # fmt: skip
"""From the highest power down: Press et al., Numerical Recipes, `erfcc`; the relative error is below 1.2e-7."""


@rule("erfc")
def erfc(o: OnnxCaller, x: str) -> str:
    """1 - erf(x) would have no digits left where it is small: t exp(-x^2 + p(t)), where t = 1 / (1 + |x| / 2)."""
    dtype, wide = o.input().dtype, torch.float64
    if dtype is wide:
        raise o.refused("in float64")
    x = o.cast(x, wide)
    t = o("Reciprocal", o("Add", o("Mul", o("Abs", x), o.number(0.5, wide)), o.number(1, wide)))
    total = o.number(ERFC[0], wide)
    for factor in ERFC[1:]:
        total = o("Add", o("Mul", total, t), o.number(factor, wide))
    half = o("Mul", t, o("Exp", o("Sub", total, o("Mul", x, x))))
    is_negative = o("Less", x, o.number(0, wide))
    return o.cast(o("Where", is_negative, o("Sub", o.number(2, wide), half), half), dtype)


@rule("signbit")
def signbit(o: OnnxCaller, x: str) -> str:
    """Not of NaN."""
    zero = o.number(0)
    if not o.input().dtype.is_floating_point:
        return o("Less", x, zero)
    return o("Or", o("Less", x, zero), o("Less", o("Div", o.number(1), x), zero))


@rule("copysign")
def copysign(o: OnnxCaller, x: str, y: str) -> str:
    size = o("Abs", x)
    return o("Where", signbit(o, y), o("Neg", size), size)


@rule("atan2")
def atan2(o: OnnxCaller, y: str, x: str) -> str:
    both = o("And", o("IsInf", y), o("IsInf", x))
    angle = o("Atan", o("Div", o("Where", both, o("Sign", y), y), o("Where", both, o("Sign", x), x)))
    turned = o("Add", angle, copysign(o, o.number(math.pi), y))
    zero = o("Equal", y, o.number(0))
    return o(
        "Where", signbit(o, x), o("Where", zero, copysign(o, o.number(math.pi), y), turned), o("Where", zero, y, angle)
    )


@rule("hypot")
def hypot(o: OnnxCaller, x: str, y: str) -> str:
    long, short = [o(op, o("Abs", x), o("Abs", y)) for op in ("Max", "Min")]
    ratio = o("Div", short, long)
    length = o("Mul", long, o("Sqrt", o("Add", o("Mul", ratio, ratio), o.number(1))))
    return o("Where", o("Or", o("Equal", long, o.number(0)), o("IsInf", long)), long, length)


@rule("shift_left", "shift_right")
def shift(o: OnnxCaller, x: str, y: str) -> str:
    is_left = o.node.op.name == "shift_left"
    if not o.spec.dtype.is_signed:
        return o("BitShift", x, y, direction="LEFT" if is_left else "RIGHT")
    power = o("Pow", o.number(2), y)
    return o("Mul", x, power) if is_left else str(floor_div(o, x, power))


rule("fma")(lambda o, x, y, z: o("Add", o("Mul", x, y), z))


@rule("sign")
def sign(o: OnnxCaller, x: str) -> str:
    if not o.input().dtype.is_floating_point:
        return o("Sign", x)
    return o("Where", o("IsNaN", x), o.number(0), o("Sign", x))


@rule("trunc")
def trunc(o: OnnxCaller, x: str) -> str:
    return o("Where", o("Less", x, o.number(0)), o("Ceil", x), o("Floor", x))


@rule("trunc_div")
def trunc_div(o: OnnxCaller, x: str, y: str) -> str:
    quotient = o("Div", x, y)
    return trunc(o, quotient) if o.spec.dtype.is_floating_point else quotient


@rule("fmod")
def fmod(o: OnnxCaller, x: str, y: str) -> str:
    return o("Mod", x, y, fmod=1)


def has_other_sign(o: OnnxCaller, rest: str, y: str) -> str:
    """Where a remainder is neither 0 nor of the sign of the divisor."""
    zero = o.number(0)
    signs = o("Xor", o("Less", rest, zero), o("Less", y, zero))
    return o("And", o("Not", o("Equal", rest, zero)), signs)


@rule("remainder")
def remainder(o: OnnxCaller, x: str, y: str) -> str:
    if not o.spec.dtype.is_floating_point:
        return o("Mod", x, y)
    rest = fmod(o, x, y)
    return o("Where", has_other_sign(o, rest, y), o("Add", rest, y), rest)


@rule("floor_div")
def floor_div(o: OnnxCaller, x: str, y: str) -> str:
    if o.spec.dtype.is_floating_point:
        return floored(o, x, y)
    quotient = o("Div", x, y)
    rest = o("Sub", x, o("Mul", quotient, y))
    return o("Where", has_other_sign(o, rest, y), o("Sub", quotient, o.number(1)), quotient)


def floored(o: OnnxCaller, x: str, y: str) -> str:
    """As eager rounds the quotient of floating point numbers."""
    rest, ratio, zero, one = fmod(o, x, y), o("Div", x, y), o.number(0), o.number(1)
    quotient = o("Div", o("Sub", x, rest), y)
    quotient = o("Where", has_other_sign(o, rest, y), o("Sub", quotient, one), quotient)
    low = o("Floor", quotient)
    low = o("Where", o("Greater", o("Sub", quotient, low), o.number(0.5)), o("Add", low, one), low)
    low = o("Where", o("Equal", quotient, zero), copysign(o, zero, ratio), low)
    return o("Where", o("Equal", y, zero), ratio, low)


@rule("fmax", "fmin")
def extreme_of_numbers(o: OnnxCaller, x: str, y: str) -> str:
    op = "Max" if o.node.op.name == "fmax" else "Min"
    if not o.spec.dtype.is_floating_point:
        return o(op, x, y)
    return o(op, o("Where", o("IsNaN", x), y, x), o("Where", o("IsNaN", y), x, y))


@rule("where")
def where(o: OnnxCaller, condition: str, x: str, y: str) -> str:
    if o.spec.dtype is not torch.bool:
        return o("Where", condition, x, y)
    return o("Or", o("And", condition, x), o("And", o("Not", condition), y))


def on_bits(truths: str, bits: str) -> OnnxRule:
    def run(o: OnnxCaller, *inputs: str) -> str:
        return o(truths if o.input().dtype is torch.bool else bits, *inputs)

    return run


rule["mul"], rule["minimum"] = on_bits("And", "Mul"), on_bits("And", "Min")
rule["add"], rule["maximum"] = on_bits("Or", "Add"), on_bits("Or", "Max")
rule["bitwise_and"] = on_bits("And", "BitwiseAnd")
rule["bitwise_or"] = on_bits("Or", "BitwiseOr")
rule["bitwise_xor"] = on_bits("Xor", "BitwiseXor")
rule["bitwise_not"] = operator("BitwiseNot")


@rule("convert")
def convert(o: OnnxCaller, x: str, *, dtype: torch.dtype) -> str:
    if dtype.is_floating_point and o.input().dtype.is_floating_point and dtype.itemsize < 2:
        raise o.refused("ONNX rounds to floats of 8 bits in other ways")
    return o("Cast", x, dtype=dtype, to=ONNX_DTYPES[dtype])


# Reductions and scans.


def reduction(op: str) -> OnnxRule:
    def run(o: OnnxCaller, x: str, *, axes: tuple[int, ...]) -> str:
        return o(op, x, o.ints(axes), keepdims=0) if axes else x

    return run


rule["sum"], rule["prod"] = reduction("ReduceSum"), reduction("ReduceProd")


@rule("amax", "amin")
def extreme(o: OnnxCaller, x: str, *, axes: tuple[int, ...]) -> str:
    if any([o.input().sizes[axis] == 0 for axis in axes]):
        raise o.refused("the extreme of no elements")
    return str(reduction("ReduceMax" if o.node.op.name == "amax" else "ReduceMin")(o, x, axes=axes))


@rule("any", "all")
def quantifier(o: OnnxCaller, x: str, *, axes: tuple[int, ...]) -> str:
    if not axes:
        return x
    op = "ReduceMax" if o.node.op.name == "any" else "ReduceMin"
    if any([o.input().sizes[axis] == 0 for axis in axes]):
        raise o.refused("the truth of no elements")
    return o.cast(o(op, o.cast(x, torch.int32), o.ints(axes), keepdims=0), torch.bool)


@rule("argmax", "argmin")
def extreme_index(o: OnnxCaller, x: str, *, axes: tuple[int, ...]) -> str:
    return o("ArgMax" if o.node.op.name == "argmax" else "ArgMin", x, axis=axes[0], keepdims=0)


rule("cumsum")(lambda o, x, *, axis: o("CumSum", x, o.number(axis, torch.int64)))


# Views: of the elements in logical order.


rule("expand")(lambda o, x, *, sizes: o("Expand", x, o.ints(sizes)))
rule("permute")(lambda o, x, *, dims: o("Transpose", x, perm=dims))
rule("view", "reshape")(lambda o, x, *, sizes: o("Reshape", x, o.ints(sizes), allowzero=1))
rule("unsqueeze")(lambda o, x, *, axis: o("Unsqueeze", x, o.ints((axis,))))
rule("squeeze")(lambda o, x, *, axes: o("Squeeze", x, o.ints(axes)) if axes else x)


@rule("slice")
def slice_(o: OnnxCaller, x: str, *, axis: int, start: Int, stop: Int, step: Int) -> str:
    return o("Slice", x, *[o.ints((value,)) for value in (start, stop, axis, step)])


rule("select")(lambda o, x, *, axis, index: o("Gather", x, o.scalar(index), axis=axis))


@rule("as_strided")
def as_strided(o: OnnxCaller, x: str, *, sizes: Sequence[Int], strides: Sequence[Int], offset: Int) -> str:
    """Elements by their numbers, if the tensor fills its memory in order; else only the same ones in the same order."""
    spec = o.input()
    pairs = zip(spec.strides, strides, spec.sizes, strict=False)
    if tuple(sizes) == spec.sizes and offset == spec.offset and all([a == b or size == 1 for a, b, size in pairs]):
        return x
    if spec.offset != 0 or not spec.is_contiguous():
        raise o.refused("a view by strides")
    found = o.scalar(offset)
    for size, stride in zip(sizes, strides, strict=True):
        found = o("Add", o("Unsqueeze", found, o.ints((-1,))), places(o, size, stride))
    return o("Gather", o("Reshape", x, o.ints((-1,))), found)


@rule("diagonal")
def diagonal(o: OnnxCaller, x: str, *, offset: int, axis1: int, axis2: int) -> str:
    spec = o.input()
    rows, columns = spec.sizes[axis1], spec.sizes[axis2]
    others = [axis for axis in range(spec.rank) if axis not in (axis1, axis2)]
    last = o("Transpose", x, perm=(*others, axis1, axis2))
    flat = o("Reshape", last, o.ints((*[spec.sizes[axis] for axis in others], rows * columns)), allowzero=1)
    first = offset if offset >= 0 else -offset * columns
    return o("Gather", flat, places(o, o.spec.sizes[-1], columns + 1, first), axis=-1)


def places(o: OnnxCaller, count: Int, step: Int = 1, start: Int = 0) -> str:
    """start, start + step, ..., of int64."""
    if isinstance(count, int) and isinstance(step, int) and isinstance(start, int) and count <= MOST_NUMBERS:
        return o.number([start + place * step for place in range(count)], torch.int64)
    counted = o("Range", o.scalar(0), o.scalar(count), o.scalar(1))
    scaled = counted if step == 1 else o("Mul", counted, o.scalar(step))
    return scaled if start == 0 else o("Add", scaled, o.scalar(start))


@rule("unfold")
def unfold(o: OnnxCaller, x: str, *, axis: int, size: Int, step: Int) -> str:
    gathered, rank = windows(o, x, axis, o.spec.sizes[axis], step, size), o.spec.rank
    return o("Transpose", gathered, perm=(*[place for place in range(rank) if place != axis + 1], axis + 1))


def windows(o: OnnxCaller, x: str, axis: int, count: Int, step: Int, size: Int, spacing: Int = 1) -> str:
    """`count` windows of `axis`, their elements in a new dimension behind it."""
    if isinstance(count, int) and isinstance(step, int) and isinstance(size, int):
        numbers = [[place * step + item * spacing for item in range(size)] for place in range(count)]
        return o("Gather", x, o.number(numbers, torch.int64), axis=axis)
    first = o("Unsqueeze", places(o, count, step), o.ints((1,)))
    return o("Gather", x, o("Add", first, places(o, size, spacing)), axis=axis)


# Data movement and scatters.


rule("clone")(lambda o, x, *, strides: x)
rule("cat")(lambda o, *inputs, axis: o("Concat", *inputs, axis=axis))


@rule("flip")
def flip(o: OnnxCaller, x: str, *, axes: tuple[int, ...]) -> str:
    count = len(axes)
    return o("Slice", x, o.ints([-1] * count), o.ints([-LAST] * count), o.ints(axes), o.ints([-1] * count))


@rule("pad")
def pad(o: OnnxCaller, x: str, value: str, *, low: Sequence[Int], high: Sequence[Int]) -> str:
    given = o.node.inputs[1]
    if given.op.name == "constant" and not isinstance(given.attrs["value"], Expr | Real):
        return bordered(o, x, given.attrs["value"], low, high)
    inner = [size - sym_max(-front, 0) - sym_max(-end, 0) for size, front, end in zip(
        o.input().sizes, low, high, strict=True)]  # fmt: skip
    borders = o.ints([sym_max(part, 0) for part in (*low, *high)])
    ones = o("Expand", o.number(1, torch.float32), o.ints(inner))
    inside = o("Pad", ones, borders, o.number(0, torch.float32), mode="constant")
    return where(o, o("Equal", inside, o.number(1, torch.float32)), bordered(o, x, 0, low, high), value)


def bordered(o: OnnxCaller, x: str, value: float, low: Sequence[Int], high: Sequence[Int]) -> str:
    """Not every runtime takes numbers that are negative, or a value that is computed."""
    sizes, cut = o.input().sizes, [sym_max(-part, 0) for part in low]
    ends = [size - sym_max(-part, 0) for part, size in zip(high, sizes, strict=True)]
    if any(cut) or tuple(ends) != sizes:
        x = o("Slice", x, o.ints(cut), o.ints(ends))
    dtype = o.spec.dtype
    wide = torch.int32 if dtype is torch.bool else dtype
    borders = o.ints([sym_max(part, 0) for part in (*low, *high)])
    return o.cast(o("Pad", o.cast(x, wide), borders, o.number(value, wide), mode="constant"), dtype)


rule("gather")(lambda o, x, index, *, axis: o("GatherElements", x, index, axis=axis))


def is_adjacent(axes: tuple[int, ...]) -> bool:
    return axes == tuple(range(axes[0], axes[0] + len(axes)))


def tuples_of(o: OnnxCaller, indices: Sequence[str], sizes: Sequence[Int]) -> str:
    """Indices as one tensor, whose last dimension has one of each."""
    shape, last = o.ints(sizes), o.ints((-1,))
    wide = [o("Unsqueeze", o("Expand", o.cast(index, torch.int64), shape), last) for index in indices]
    return o("Concat", *wide, axis=-1) if len(wide) > 1 else wide[0]


def broadcast_sizes(o: OnnxCaller, specs: Sequence[TensorSpec]) -> list[Int]:
    """The sizes of indices that are broadcast to one another."""
    rank = max(spec.rank for spec in specs)
    sizes: list[Int] = [1] * rank
    for spec in specs:
        for place, size in enumerate(spec.sizes, rank - spec.rank):
            if size != 1 and sizes[place] not in (1, size):
                raise o.refused("indices whose sizes are not known to fit")
            sizes[place] = size if size != 1 else sizes[place]
    return sizes


def indexed_first(rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The order of dimensions in which those with an index come first."""
    return (*axes, *[axis for axis in range(rank) if axis not in axes])


@rule("index")
def index(o: OnnxCaller, x: str, *indices: str, axes: tuple[int, ...]) -> str:
    specs = [o.input(place) for place in range(len(indices) + 1)]
    if any([spec.dtype not in (torch.int64, torch.int32) for spec in specs[1:]]):
        raise o.refused("an index of another dtype")
    if len(axes) == 1:
        return o("Gather", x, indices[0], axis=axes[0])
    rank, sizes = specs[0].rank, broadcast_sizes(o, specs[1:])
    order = indexed_first(rank, axes)
    moved = o("Transpose", x, perm=order) if order != tuple(range(rank)) else x
    found = o("GatherND", moved, tuples_of(o, indices, sizes))
    if not is_adjacent(axes) or axes[0] == 0:
        return found
    front, count = axes[0], len(sizes)
    total = count + rank - len(axes)
    return o("Transpose", found, perm=(*range(count, count + front), *range(count), *range(count + front, total)))


@rule("index_put")
def index_put(o: OnnxCaller, x: str, *others: str, axes: tuple[int, ...], accumulate: bool) -> str:
    *indices, values = others
    specs = [o.input(place) for place in range(len(indices) + 1)]
    if any([spec.dtype not in (torch.int64, torch.int32) for spec in specs[1:]]):
        raise o.refused("an index of another dtype")
    rank, sizes = specs[0].rank, broadcast_sizes(o, specs[1:])
    order = indexed_first(rank, axes)
    rest = [specs[0].sizes[axis] for axis in order[len(axes) :]]
    if is_adjacent(axes) and axes[0] != 0:
        front, count = axes[0], len(sizes)
        values = o("Expand", values, o.ints([*rest[:front], *sizes, *rest[front:]]))
        total = count + len(rest)
        values = o(
            "Transpose", values, perm=(*range(front, front + count), *range(front), *range(front + count, total))
        )
    else:
        values = o("Expand", values, o.ints([*sizes, *rest]))
    moved = o("Transpose", x, perm=order)
    stored = o("ScatterND", moved, tuples_of(o, indices, sizes), values, reduction="add" if accumulate else "none")
    return o("Transpose", stored, perm=tuple([order.index(axis) for axis in range(rank)]))


@rule("select_scatter")
def select_scatter(o: OnnxCaller, x: str, y: str, *, axis: int, index: Int) -> str:
    return replaced(o, x, o("Unsqueeze", y, o.ints((axis,))), axis, index, index + 1)


@rule("slice_scatter")
def slice_scatter(o: OnnxCaller, x: str, y: str, *, axis: int, start: Int, stop: Int, step: Int) -> str:
    if step != 1:
        order = (axis, *[place for place in range(o.spec.rank) if place != axis])
        where, last = places(o, o.input(1).sizes[axis], step, start), o.ints((-1,))
        moved = [o("Transpose", value, perm=order) for value in (x, y)]
        stored = o("ScatterND", moved[0], o("Unsqueeze", where, last), moved[1])
        return o("Transpose", stored, perm=tuple([order.index(place) for place in range(o.spec.rank)]))
    return replaced(o, x, y, axis, start, stop)


def replaced(o: OnnxCaller, x: str, y: str, axis: int, start: Int, stop: Int) -> str:
    """`x` with `y` at start:stop along `axis`."""
    size = o.input().sizes[axis]
    before = slice_(o, x, axis=axis, start=0, stop=start, step=1) if start != 0 else None
    behind = slice_(o, x, axis=axis, start=stop, stop=size, step=1) if stop != size else None
    parts = [part for part in (before, y, behind) if part is not None]
    return o("Concat", *parts, axis=axis) if len(parts) > 1 else y


REDUCTIONS = {None: "none", "sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@rule("scatter")
def scatter(o: OnnxCaller, x: str, index: str, src: str, *, axis: int, reduce: str | None) -> str:
    sizes = o.input(1).sizes
    if sizes != o.input(2).sizes:
        src = o("Slice", src, o.ints([0] * len(sizes)), o.ints(sizes))
    return o("ScatterElements", x, index, src, axis=axis, reduction=REDUCTIONS[reduce])


# Creation.


@rule("constant")
def constant(o: OnnxCaller, *, value: object, dtype: torch.dtype, device: torch.device) -> str:
    if isinstance(value, Expr | Real):
        return o.cast(o.scalar(value), dtype)
    if isinstance(value, complex):
        raise o.refused("a complex number")
    return o.number(value, dtype)


rule("full")(lambda o, x, *, sizes: o("Expand", x, o.ints(sizes)))


@rule("iota")
def iota(o: OnnxCaller, *, length: Int, start: Int, step: Int, dtype: torch.dtype, device: torch.device) -> str:
    if not isinstance(start, float) and not isinstance(step, float):
        return o.cast(places(o, length, step, start), dtype)
    wide, low = [constant(o, value=value, dtype=torch.float64, device=device) for value in (step, start)]
    return o.cast(o("Add", o("Mul", o.cast(places(o, length), torch.float64), wide), low), dtype)


rule("empty")(lambda o, *, sizes, strides, dtype, device: o("Expand", o.number(0, dtype), o.ints(sizes)))
