"""Triton as data: one table of expressions for numbers and for blocks of numbers.

bf16 and f16 are computed in float32. Functions without a module are in `prelude/*.triton` (`div`, `sigmoid`, ..);
`libdevice` is CUDA's library of exact functions: Triton's own `tl.exp` and `/` are faster and less accurate than eager.
"""

from __future__ import annotations

import torch

from kiln.loops.codegen.dialect import Dialect, truth_exprs
from kiln.loops.codegen.integers import IntSyntax

TRITON_INTEGERS = IntSyntax(
    div="({0} // {1})",
    mod="({0} % {1})",
    floor_div="floor_div({0}, {1})",
    floor_mod="floor_mod({0}, {1})",
    smallest="tl.minimum({0}, {1})",
    largest="tl.maximum({0}, {1})",
)

_UNARY = (
    "trunc", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
)  # fmt: skip
_BINARY = ("copysign", "nextafter", "hypot", "atan2", "fmod", "pow")


# fmt: off
TRITON = Dialect(
    name="Triton",
    dtypes={
        torch.float64: "tl.float64", torch.float32: "tl.float32", torch.float16: "tl.float16",
        torch.bfloat16: "tl.bfloat16", torch.int64: "tl.int64", torch.int32: "tl.int32", torch.int16: "tl.int16",
        torch.int8: "tl.int8", torch.uint8: "tl.uint8", torch.uint16: "tl.uint16", torch.uint32: "tl.uint32",
        torch.uint64: "tl.uint64", torch.bool: "tl.int1",
    },
    compute_in={torch.bfloat16: torch.float32, torch.float16: torch.float32},
    exprs={
        **{name: f"libdevice.{name}({{0}})" for name in _UNARY},
        **{name: f"libdevice.{name}({{0}}, {{1}})" for name in _BINARY},
        "neg": "{0} * -1.0",  # Triton's minus is 0 - x, which loses the sign of zero
        "abs": "tl.abs({0})",
        "sign": "sign({0})",
        "add": "{0} + {1}",
        "sub": "{0} - {1}",
        "mul": "{0} * {1}",
        "div": "div({0}, {1})",
        "floor_div": "float_floor_div({0}, {1})",
        "trunc_div": "libdevice.trunc(div({0}, {1}))",
        "remainder": "float_remainder({0}, {1})",
        "fma": "tl.fma({0}, {1}, {2})",
        "maximum": "maximum({0}, {1})",
        "minimum": "minimum({0}, {1})",
        "fmax": "tl.maximum({0}, {1})",
        "fmin": "tl.minimum({0}, {1})",
        "where": "tl.where({0}, {1}, {2})",
        "floor": "tl.floor({0})",
        "ceil": "tl.ceil({0})",
        "round": "libdevice.rint({0})",
        "sqrt": "sqrt({0})",
        "rsqrt": "tl.rsqrt({0})",
        "reciprocal": "reciprocal({0})",
        "sigmoid": "sigmoid({0})",
        "digamma": "digamma({0})",
        # Made by the pass fast-math.
        "erf_narrow": "erf_narrow({0})",
        "exp_narrow": "tl.exp({0})",
        "exp2_narrow": "tl.exp2({0})",
        "log_narrow": "tl.log({0})",
        "div_narrow": "{0} / {1}",
        "reciprocal_narrow": "1.0 / {0}",
        "sigmoid_narrow": "sigmoid_narrow({0})",
        "eq": "{0} == {1}",
        "ne": "{0} != {1}",
        "lt": "{0} < {1}",
        "le": "{0} <= {1}",
        "gt": "{0} > {1}",
        "ge": "{0} >= {1}",
        "isnan": "{0} != {0}",
        "isinf": "isinf({0})",
        "signbit": "signbit({0})",
        "logical_not": "{0} == 0",
        "bitwise_and": "{0} & {1}",
        "bitwise_or": "{0} | {1}",
        "bitwise_xor": "{0} ^ {1}",
        "bitwise_not": "~{0}",
        "shift_left": "shift_left({0}, {1})",
        "shift_right": "shift_right({0}, {1})",
    },
    exprs_for={
        "int": {
            # Integers have no NaN and wrap around. `{divisor}` is {1}, checked where it may be zero.
            "neg": "-{0}",
            "bitwise_not": "-{0} - 1",
            "isnan": "{0} != {0}",
            "isinf": "{0} != {0}",
            "signbit": "{0} < 0",
            "floor_div": "floor_div({0}, {divisor})",
            "trunc_div": "{0} // {divisor}",
            "remainder": "floor_mod({0}, {divisor})",
            "fmod": "{0} % {divisor}",
            "pow": "int_pow({0}, {1})",
        },
        "bool": {**truth_exprs("~"), "logical_not": "~{0}"},
    },
    methods=frozenset({"convert", "bitcast"}),
)
# fmt: on
