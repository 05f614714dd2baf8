# ruff: noqa: E501
"""Algebraic rules on pointwise ops. Every rule preserves all bits, including NaN, infinities and -0.0.

%2 = mul(%1, 1.0)        =>      %1
%3 = where(%2, %1, %1)   =>      %1
"""

from __future__ import annotations

from math import frexp, isinf, isnan

import torch

from kiln.graph.passes.patterns import Condition, Match, RewriteRule, RuleSet, attr, computed, const, op, var
from kiln.tensor.spec import TensorSpec

x, y, c = var("x"), var("y"), var("c")
k = const("k")

# Conditions.


def is_integral(match: Match) -> bool:
    dtype = match.root.tensor.dtype
    return not dtype.is_floating_point and not dtype.is_complex


def is_floating(match: Match) -> bool:
    return match.root.tensor.dtype.is_floating_point


def has_dtype(name: str, dtype: torch.dtype) -> Condition:
    return lambda match: match.nodes[name].tensor.dtype is dtype


def exact_reciprocal(number: float) -> float | None:
    """`1 / number` if that is exact in every format: for powers of two of moderate size."""
    if isinstance(number, complex) or isinf(number) or isnan(number) or abs(frexp(number)[0]) != 0.5:
        return None
    return 1 / number if 2**-14 <= abs(number) <= 2**14 else None


# The dtypes that represent every value of a dtype exactly.
# fmt: off
f64, f32, f16, bf16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
i64, i32, i16, i8, u8, b8 = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool
EXACT_IN: dict[torch.dtype, frozenset[torch.dtype]] = {
    b8:   frozenset({b8, u8, i8, i16, i32, i64, f16, bf16, f32, f64}),
    u8:   frozenset({u8, i16, i32, i64, f16, bf16, f32, f64}),
    i8:   frozenset({i8, i16, i32, i64, f16, bf16, f32, f64}),
    i16:  frozenset({i16, i32, i64, f32, f64}),
    i32:  frozenset({i32, i64, f64}),
    i64:  frozenset({i64}),
    f16:  frozenset({f16, f32, f64}),
    bf16: frozenset({bf16, f32, f64}),
    f32:  frozenset({f32, f64}),
    f64:  frozenset({f64}),
}
# fmt: on


def through(original: TensorSpec, middle: torch.dtype, last: torch.dtype) -> torch.dtype | None:
    """The dtype of a single conversion that equals both; None if the first is inexact."""
    # Conversion to bool compares with zero, which every exact conversion preserves.
    return last if middle in EXACT_IN.get(original.dtype, ()) else None


# Absent on purpose: x + 0 => x and 0 - x => -x are wrong for -0.0, x * 0 => 0 and x - x => 0 for NaN;
# pow(x, 2) => x * x differs in the last bit; x / 3 => x * (1/3) rounds twice.
# fmt: off
ARITHMETIC = RuleSet(
    #           name             pattern                                replacement      only if
    RewriteRule("neg_neg",           op.neg(op.neg(x)),                     x),
    RewriteRule("abs_abs",           op.abs(op.abs(x)),                     op.abs(x)),
    RewriteRule("abs_neg",           op.abs(-x),                            op.abs(x),       is_floating),
    RewriteRule("mul_one",           x * 1,                                 x),
    RewriteRule("mul_minus_one",     x * -1,                                -x,              is_floating),
    RewriteRule("mul_zero",          x * 0,                                 op.full(0, sizes=computed(lambda s: s.sizes, "x")), is_integral),
    RewriteRule("div_one",           x / 1,                                 x),
    RewriteRule("div_by_const",      x / k,                                 x * computed(exact_reciprocal, "k")),
    RewriteRule("add_minus_zero",    x + -0.0,                              x,               is_floating),
    RewriteRule("add_zero",          x + 0,                                 x,               is_integral),
    RewriteRule("sub_zero",          x - 0,                                 x),
    RewriteRule("sub_neg",           x - (-y),                              x + y),
    RewriteRule("add_neg",           x + (-y),                              x - y),
    RewriteRule("pow_one",           op.pow(x, 1),                          x),
    RewriteRule("maximum_same",      op.maximum(x, x),                      x),
    RewriteRule("minimum_same",      op.minimum(x, x),                      x),
    RewriteRule("maximum_maximum",   op.maximum(op.maximum(x, k), k),       op.maximum(x, k)),
    RewriteRule("minimum_minimum",   op.minimum(op.minimum(x, k), k),       op.minimum(x, k)),
    RewriteRule("where_same",        op.where(c, x, x),                     x),
    RewriteRule("where_true",        op.where(True, x, y),                  x),
    RewriteRule("where_false",       op.where(False, x, y),                 y),
    RewriteRule("where_not",         op.where(op.logical_not(c), x, y),     op.where(c, y, x), has_dtype("c", torch.bool)),
    RewriteRule("where_where",       op.where(c, op.where(c, x, y), var("z")), op.where(c, x, var("z"))),
    RewriteRule("not_not",           op.logical_not(op.logical_not(x)),     x),
    RewriteRule("not_lt",            op.logical_not(op.lt(x, y)),           op.ge(x, y),     lambda m: not m.nodes["x"].tensor.dtype.is_floating_point),
    RewriteRule("not_eq",            op.logical_not(op.eq(x, y)),           op.ne(x, y)),
    RewriteRule("not_ne",            op.logical_not(op.ne(x, y)),           op.eq(x, y)),
    RewriteRule("bits_not_not",      ~(~x),                                 x),
    RewriteRule("and_same",          op.bitwise_and(x, x),                  x),
    RewriteRule("or_same",           op.bitwise_or(x, x),                   x),
    RewriteRule("and_true",          op.bitwise_and(x, True),               x,               has_dtype("x", torch.bool)),
    RewriteRule("or_false",          op.bitwise_or(x, False),               x,               has_dtype("x", torch.bool)),
    RewriteRule("convert_same",      op.convert(x, dtype=attr("d")),        x),
    RewriteRule("convert_convert",   op.convert(op.convert(x, dtype=attr("m")), dtype=attr("d")),
                                                                         op.convert(x, dtype=computed(through, "x", "m", "d"))),
)
# fmt: on
