"""Halide as data: a table of expressions in its Python language.

What is not here (integer division, which must report a zero; functions without a vector form of enough precision)
is left to C++. The functions are in `kiln/build/halide_unit.py`.
"""

from __future__ import annotations

import torch

from kiln.loops.codegen.dialect import Dialect
from kiln.loops.codegen.integers import IntSyntax

HALIDE_INTEGERS = IntSyntax(
    div="floor_div({0}, {1})",
    mod="floor_mod({0}, {1})",
    floor_div="floor_div({0}, {1})",
    floor_mod="floor_mod({0}, {1})",
    smallest="hl.min({0}, {1})",
    largest="hl.max({0}, {1})",
)

# fmt: off
HALIDE = Dialect(
    name="Halide",
    dtypes={
        torch.float64: "hl.Float(64)", torch.float32: "hl.Float(32)", torch.int64: "hl.Int(64)",
        torch.int32: "hl.Int(32)", torch.int16: "hl.Int(16)", torch.int8: "hl.Int(8)", torch.uint8: "hl.UInt(8)",
        torch.bool: "hl.UInt(1)",
    },
    compute_in={},
    exprs={
        "neg": "-{0}",
        "add": "{0} + {1}",
        "sub": "{0} - {1}",
        "mul": "{0} * {1}",
        "where": "hl.select({0}, {1}, {2})",
        "maximum": "maximum({0}, {1})",
        "minimum": "minimum({0}, {1})",
        "eq": "{0} == {1}",
        "ne": "{0} != {1}",
        "lt": "{0} < {1}",
        "le": "{0} <= {1}",
        "gt": "{0} > {1}",
        "ge": "{0} >= {1}",
        "isnan": "{0} != {0}",
        "logical_not": "negated({0})",
        "bitwise_and": "{0} & {1}",
        "bitwise_or": "{0} | {1}",
        "bitwise_xor": "{0} ^ {1}",
        "bitwise_not": "~{0}",
    },
    exprs_for={
        "float": {
            "abs": "hl.abs({0})",
            "div": "{0} / {1}",
            "fma": "{0} * {1} + {2}",
            "reciprocal": "one({0}) / {0}",
            "sqrt": "hl.sqrt({0})",
            "rsqrt": "one({0}) / hl.sqrt({0})",
            "floor": "hl.floor({0})",
            "ceil": "hl.ceil({0})",
            "trunc": "hl.trunc({0})",
            "round": "hl.round({0})",
            "exp": "exp({0})",
            "log": "log({0})",
            "erf": "erf({0})",
            "tanh": "tanh({0})",
            "sigmoid": "one({0}) / (one({0}) + exp(-{0}))",
        },
        "bool": {
            "add": "{0} | {1}",
            "mul": "{0} & {1}",
            "maximum": "{0} | {1}",
            "minimum": "{0} & {1}",
            "bitwise_not": "negated({0})",
        },
    },
    methods=frozenset({"convert"}),
)
# fmt: on
