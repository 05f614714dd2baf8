"""Functions and running extremes that ONNX has no operators for, of operators that it has.

lgamma(x)          log of Lanczos' series, computed in float64; below 1/2 by reflection
cummax(x, 1)       of twice as many elements in each step, values and positions together
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from kiln.onnx.call import OnnxCaller
from kiln.onnx.library_rules import LIBRARY_RULES
from kiln.onnx.rules import ONNX_RULES, places
from kiln.onnx.rules import ONNX_RULES as rule

LANCZOS = (
    676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
    -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
"""Of g = 7 and nine terms, the first of which is 1; the absolute error is about 1e-15."""
SHIFT = 16
BERNOULLI = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
"""Of the asymptotic series of digamma, in powers of 1 / x^2; beyond `SHIFT` the next term is below 1e-17."""
WIDE = torch.float64


def reflected(o: OnnxCaller, x: str) -> tuple[str, str, str]:
    """x in float64, whether it is below 1/2, and there 1 - x."""
    x = o.cast(x, WIDE)
    is_low = o("Less", x, o.number(0.5, WIDE))
    return x, is_low, o("Where", is_low, o("Sub", o.number(1, WIDE), x), x)


def angle_of(o: OnnxCaller, x: str) -> str:
    """pi times the distance from the next whole number, so that it is 0 at the poles."""
    return o("Mul", o("Sub", x, o("Round", x)), o.number(math.pi, WIDE))


@rule("lgamma")
def lgamma(o: OnnxCaller, x: str) -> str:
    dtype = o.input().dtype
    x, is_low, y = reflected(o, x)
    z = o("Sub", y, o.number(1, WIDE))
    terms = o("Div", o.number(LANCZOS, WIDE), o("Add", o("Unsqueeze", z, o.ints((-1,))), steps(o, 1, 8)))
    series = o("Log", o("Add", o("ReduceSum", terms, o.ints((-1,)), keepdims=0), o.number(0.99999999999980993, WIDE)))
    t = o("Add", z, o.number(7.5, WIDE))
    power = o("Sub", o("Mul", o("Add", z, o.number(0.5, WIDE)), o("Log", t)), t)
    whole = o("Add", o("Add", power, series), o.number(0.5 * math.log(2 * math.pi), WIDE))
    infinite = o.number(math.inf, WIDE)
    whole = o("Where", o("Equal", y, infinite), infinite, whole)
    sine = o("Log", o("Abs", o("Sin", angle_of(o, x))))
    low = o("Sub", o("Sub", o.number(math.log(math.pi), WIDE), sine), whole)
    return o.cast(o("Where", o("IsInf", x), infinite, o("Where", is_low, low, whole)), dtype)


def steps(o: OnnxCaller, start: int, count: int) -> str:
    return o.number([float(start + step) for step in range(count)], WIDE)


@rule("digamma")
def digamma(o: OnnxCaller, x: str) -> str:
    """Beyond `SHIFT` by its series; psi(x) = psi(x + 1) - 1 / x, and psi(1 - x) = psi(x) + pi / tan(pi x)."""
    dtype = o.input().dtype
    x, is_low, y = reflected(o, x)
    last, one = o.ints((-1,)), o.number(1, WIDE)
    back = o("ReduceSum", o("Div", one, o("Add", o("Unsqueeze", y, last), steps(o, 0, SHIFT))), last, keepdims=0)
    inverse = o("Div", one, o("Add", y, o.number(float(SHIFT), WIDE)))
    square, total = o("Mul", inverse, inverse), o.number(BERNOULLI[-1], WIDE)
    for factor in BERNOULLI[-2::-1]:
        total = o("Add", o("Mul", total, square), o.number(factor, WIDE))
    rest = o("Sub", o("Mul", total, square), o("Mul", inverse, o.number(0.5, WIDE)))
    high = o("Sub", o("Sub", rest, o("Log", inverse)), back)
    angle = angle_of(o, x)
    cotangent = o("Div", o("Cos", angle), o("Sin", angle))
    low = o("Sub", high, o("Mul", o.number(math.pi, WIDE), cotangent))
    made = o("Where", is_low, low, high)
    is_pole = o("And", is_low, o("Equal", angle, o.number(0, WIDE)))
    is_zero = o("Equal", x, o.number(0, WIDE))
    pole = o("Where", is_zero, o("Neg", o("Div", one, x)), o.number(math.nan, WIDE))
    return o.cast(o("Where", is_pole, pole, made), dtype)


# Running values.

Combine = Callable[[Sequence[str], Sequence[str]], Sequence[str]]


def running(o: OnnxCaller, values: Sequence[str], neutral: Sequence[str], axis: int, combine: Combine) -> Sequence[str]:
    """Each element with all in front of it, by a rule that may be applied in any grouping: (earlier, later)."""
    sizes = o.input().sizes
    length, near = (sizes[axis], 1) if sizes else (1, 1)
    if not isinstance(length, int):
        raise o.refused("a running value of unknown length")
    while near < length:
        front = o.ints((*sizes[:axis], near, *sizes[axis + 1 :]))
        start, end, along = (o.ints((number,)) for number in (0, length - near, axis))
        earlier = [
            o("Concat", o("Expand", fill, front), o("Slice", value, start, end, along), axis=axis)
            for value, fill in zip(values, neutral, strict=True)
        ]
        values = combine(earlier, values)
        near *= 2
    return values


@rule("cumprod")
def cumprod(o: OnnxCaller, x: str, *, axis: int) -> str:
    return running(o, [x], [o.number(1)], axis, lambda earlier, later: [o("Mul", earlier[0], later[0])])[0]


@LIBRARY_RULES("cummax.default", "cummin.default")
def running_extreme(o: OnnxCaller, x: str, dim: int) -> tuple[str, ...]:
    """Of equal values, and of NaN, the last."""
    dtype, is_max, rank = o.input().dtype, "cummax" in o.node.attrs["target"], o.input().rank
    if dtype is torch.bool:
        raise o.refused("extremes of truth values")
    axis = dim % rank if rank else 0

    def later_wins(earlier: Sequence[str], later: Sequence[str]) -> list[str]:
        wins = o("GreaterOrEqual" if is_max else "LessOrEqual", later[0], earlier[0])
        wins = o("Or", wins, o("IsNaN", later[0])) if dtype.is_floating_point else wins
        return [o("Where", wins, *pair) for pair in zip(later, earlier, strict=True)]

    if dtype.is_floating_point:
        least = -math.inf if is_max else math.inf
    else:
        least = torch.iinfo(dtype).min if is_max else torch.iinfo(dtype).max
    count = o.input().sizes[axis] if rank else 1
    position = o("Reshape", places(o, count), o.ints([-1, *[1] * max(0, rank - axis - 1)]))
    position = o("Expand", position, o.ints(o.spec.sizes)) if rank else o.scalar(0)
    found = running(o, [x, position], [o.number(least), o.scalar(0)], axis, later_wins)
    return tuple(found)


@LIBRARY_RULES("logcumsumexp.default")
def logcumsumexp(o: OnnxCaller, x: str, dim: int) -> str:
    def added(earlier: Sequence[str], later: Sequence[str]) -> list[str]:
        high = o("Max", earlier[0], later[0])
        apart = o("Abs", o("Sub", earlier[0], later[0]))
        more = str(ONNX_RULES["log1p"](o, o("Exp", o("Neg", apart))))
        return [o("Where", o("IsInf", high), high, o("Add", high, more))]

    return running(o, [x], [o.number(-math.inf)], dim % max(1, o.input().rank), added)[0]
