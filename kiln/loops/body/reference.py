"""What each POINTWISE primitive means on real tensors: the reference that the interpreter and the tests use.

    REFERENCE["floor_div"](x, y)  is  torch.div(x, y, rounding_mode="floor")

Functions take tensors of one dtype (see the conventions of `PRIMS`) and return what eager would; `convert` and
`bitcast` also take the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Column, Kind, Prim

Tensor = torch.Tensor

REFERENCE: Column[Callable[..., Tensor]] = PRIMS.column("reference", required=frozenset({Kind.POINTWISE}))
"""Each POINTWISE primitive as a function on tensors."""

_SAME_NAME = (
    "neg", "abs", "sign", "add", "sub", "mul", "div", "remainder", "fmod", "pow", "maximum", "minimum", "fmax", "fmin",
    "where", "copysign", "nextafter", "hypot", "floor", "ceil", "trunc", "round", "sqrt", "rsqrt", "reciprocal", "exp",
    "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma", "eq", "ne",
    "lt", "le", "gt", "ge", "isnan", "isinf", "signbit", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not",
)  # fmt: skip
for _name in _SAME_NAME:
    REFERENCE[_name] = getattr(torch, _name)

REFERENCE["floor_div"] = lambda x, y: torch.div(x, y, rounding_mode="floor")
REFERENCE["trunc_div"] = lambda x, y: torch.div(x, y, rounding_mode="trunc")
# In double precision the product of two floats is exact; a double is rounded twice.
REFERENCE["fma"] = lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype)
REFERENCE["shift_left"] = torch.bitwise_left_shift
REFERENCE["shift_right"] = torch.bitwise_right_shift
REFERENCE["convert"] = lambda x, *, dtype: x.to(dtype)
REFERENCE["bitcast"] = lambda x, *, dtype: x.contiguous().view(dtype)

ERF_PLUS_ONE = Prim("erf_plus_one", 1, "1 + erf(x)", Kind.POINTWISE, floating=True, flops=16)
_FAST = ("erf", "exp", "exp2", "log", "div", "reciprocal", "sigmoid")
FAST_VARIANTS: Mapping[str, Prim] = {name: replace(PRIMS[name], name=f"{name}_narrow") for name in _FAST}
"""Less accurate functions by the names of the exact ones. Like `ERF_PLUS_ONE`, only passes over kernels make them."""
_OF_KERNELS: Mapping[str, Callable[..., Tensor]] = {
    "erf_plus_one": lambda x: torch.erfc(-x),
    **{prim.name: REFERENCE[name] for name, prim in FAST_VARIANTS.items()},
}


def apply(op: Prim, dtype: torch.dtype, operands: tuple[Tensor, ...]) -> Tensor:
    function: Callable[..., Tensor] = _OF_KERNELS.get(op.name) or REFERENCE[op.name]
    return function(*operands, dtype=dtype) if "dtype" in op.attrs else function(*operands)
