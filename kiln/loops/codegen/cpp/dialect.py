"""C++ with GCC's vector extensions, as data: one table of expressions for numbers and for vectors of numbers.

A bool is a `bool`, or a lane of 0 or -1; bf16 and f16 are computed in float. The functions are in `prelude/*.h`.
"""

from __future__ import annotations

import torch

from kiln.loops.codegen.dialect import Dialect, truth_exprs
from kiln.loops.codegen.integers import IntSyntax

CPP_INTEGERS = IntSyntax()

_UNARY = (
    "abs", "sign", "floor", "ceil", "trunc", "round", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10",
    "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid",
    "erf", "erfc", "erfinv", "lgamma", "digamma", "isinf", "signbit", "erf_plus_one",
)  # fmt: skip
_BINARY = (
    "maximum", "minimum", "fmax", "fmin", "copysign", "nextafter", "hypot", "atan2", "remainder", "fmod", "pow",
    "shift_left", "shift_right",
)  # fmt: skip
# fmt: off
CPP = Dialect(
    name="C++",
    dtypes={
        torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
        torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
        torch.uint8: "u8", torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64", torch.bool: "bool",
    },
    compute_in={torch.bfloat16: torch.float32, torch.float16: torch.float32},
    exprs={
        **{name: f"{name}({{0}})" for name in _UNARY},
        **{name: f"{name}({{0}}, {{1}})" for name in _BINARY},
        "fma": "fma({0}, {1}, {2})",
        "neg": "-{0}",
        "add": "{0} + {1}",
        "sub": "{0} - {1}",
        "mul": "{0} * {1}",
        "div": "{0} / {1}",
        "reciprocal": "1 / {0}",
        "floor_div": "float_floor_div({0}, {1})",
        "trunc_div": "trunc({0} / {1})",
        "where": "sel({0}, {1}, {2})",
        "eq": "equals({0}, {1})",
        "ne": "differs({0}, {1})",
        "lt": "less({0}, {1})",
        "le": "at_most({0}, {1})",
        "gt": "greater({0}, {1})",
        "ge": "at_least({0}, {1})",
        "isnan": "differs({0}, {0})",
        "logical_not": "!{0}",
        "bitwise_and": "{0} & {1}",
        "bitwise_or": "{0} | {1}",
        "bitwise_xor": "{0} ^ {1}",
        "bitwise_not": "~{0}",
    },
    exprs_for={
        "int": {
            # Integers have no NaN and wrap around.
            "isnan": "differs({0}, {0})",
            "isinf": "differs({0}, {0})",
            "floor_div": "int_floor_div({0}, {1}, status, {lanes})",
            "trunc_div": "int_trunc_div({0}, {1}, status, {lanes})",
            "remainder": "int_remainder({0}, {1}, status, {lanes})",
            "fmod": "int_fmod({0}, {1}, status, {lanes})",
            "pow": "int_pow({0}, {1})",
        },
        "bool": {**truth_exprs("!"), "bitwise_not": "!{0}", "eq": "equals({0}, {1})"},
    },
    methods=frozenset({"convert", "bitcast"}),
)
# fmt: on
