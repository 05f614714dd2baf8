"""The column `aten`: each primitive op as calls of ATen overloads.

    fma(x, y, z)   =>   _to_copy(add(mul(_to_copy(x, f64), _to_copy(y, f64)), _to_copy(z, f64)), f32)

A rule is `rule(call, *inputs, **attrs)`; `call(name, *args, **kwargs)` runs the overload on real tensors
(`interpret.py`) or makes an fx node (`fx_view.py`), so that one table serves both. `call.spec` is the
predicted result. A rule that is only an overload with the inputs in order is its name.
Ops without a cell are handled where graphs are walked: inputs, items, library ops, nested graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.tensor.dtypes import extremes
from kiln.tensor.spec import TensorSpec


class AtenCaller(Protocol):
    """Runs (or records) one ATen overload, named without `aten.`."""

    @property
    def spec(self) -> TensorSpec: ...

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any: ...


AtenRule = Callable[..., Any]

ATEN_RULES = PRIMS.column(
    "aten", required=frozenset({Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.VIEW, Kind.DATA_MOVEMENT, Kind.SCATTER})
)
rule = ATEN_RULES

WALKED = frozenset(
    {"input", "constant_tensor", "item", "aten", "opaque", "cond", "while_loop", "region", "scalar_tensor"}
)
"""Ops that a walker handles itself."""


def overload(name: str) -> AtenRule:
    """The rule that calls one overload with the inputs in order."""

    def run(call: AtenCaller, *inputs: Any) -> Any:
        return call(name, *inputs)

    return run


# fmt: off
for _name, _target in {
    "neg": "neg.default", "abs": "abs.default", "sign": "sign.default", "add": "add.Tensor", "sub": "sub.Tensor",
    "mul": "mul.Tensor", "div": "div.Tensor", "floor_div": "floor_divide.default", "remainder": "remainder.Tensor",
    "fmod": "fmod.Tensor", "pow": "pow.Tensor_Tensor", "maximum": "maximum.default", "minimum": "minimum.default",
    "fmax": "fmax.default", "fmin": "fmin.default", "where": "where.self", "copysign": "copysign.Tensor",
    "nextafter": "nextafter.default", "hypot": "hypot.default", "floor": "floor.default", "ceil": "ceil.default",
    "trunc": "trunc.default", "round": "round.default", "sqrt": "sqrt.default", "rsqrt": "rsqrt.default",
    "reciprocal": "reciprocal.default", "exp": "exp.default", "exp2": "exp2.default", "expm1": "expm1.default",
    "log": "log.default", "log2": "log2.default", "log10": "log10.default", "log1p": "log1p.default",
    "sin": "sin.default", "cos": "cos.default", "tan": "tan.default", "asin": "asin.default", "acos": "acos.default",
    "atan": "atan.default", "atan2": "atan2.default", "sinh": "sinh.default", "cosh": "cosh.default",
    "tanh": "tanh.default", "asinh": "asinh.default", "acosh": "acosh.default", "atanh": "atanh.default",
    "sigmoid": "sigmoid.default", "erf": "erf.default", "erfc": "erfc.default", "erfinv": "erfinv.default",
    "lgamma": "lgamma.default", "digamma": "digamma.default", "eq": "eq.Tensor", "ne": "ne.Tensor", "lt": "lt.Tensor",
    "le": "le.Tensor", "gt": "gt.Tensor", "ge": "ge.Tensor", "isnan": "isnan.default", "isinf": "isinf.default",
    "signbit": "signbit.default", "logical_not": "logical_not.default", "bitwise_and": "bitwise_and.Tensor",
    "bitwise_or": "bitwise_or.Tensor", "bitwise_xor": "bitwise_xor.Tensor", "bitwise_not": "bitwise_not.default",
    "shift_left": "bitwise_left_shift.Tensor", "shift_right": "bitwise_right_shift.Tensor",
}.items():
    rule[_name] = overload(_target)
# fmt: on


@rule("trunc_div")
def trunc_div(call: AtenCaller, x: Any, y: Any) -> Any:
    return call("div.Tensor_mode", x, y, rounding_mode="trunc")


@rule("fma")
def fma(call: AtenCaller, x: Any, y: Any, z: Any) -> Any:
    dtype = call.spec.dtype
    if dtype.itemsize > 4:
        return call("addcmul.default", z, x, y)
    # The product of two numbers of up to 32 bits is exact in 64.
    x, y, z = (call("_to_copy.default", one, dtype=torch.float64) for one in (x, y, z))
    return call("_to_copy.default", call("add.Tensor", call("mul.Tensor", x, y), z), dtype=dtype)


@rule("convert")
def convert(call: AtenCaller, x: Any, *, dtype: torch.dtype) -> Any:
    return call("_to_copy.default", x, dtype=dtype)


@rule("bitcast")
def bitcast(call: AtenCaller, x: Any, *, dtype: torch.dtype) -> Any:
    return call("clone.default", call("view.dtype", x, dtype))


# Reductions and scans.


@rule("sum")
def sum_(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return call("sum.dim_IntList", x, axes, dtype=call.spec.dtype) if axes else x


@rule("amax")
def amax(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return extreme(call, "amax.default", x, axes)


@rule("amin")
def amin(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return extreme(call, "amin.default", x, axes)


def extreme(call: AtenCaller, name: str, x: Any, axes: tuple[int, ...]) -> Any:
    """Of rows without elements, which ATen refuses, it is where the search for one begins."""
    if not axes:
        return x
    if not isinstance(x, torch.Tensor) or all(x.shape[axis] for axis in axes):
        return call(name, x, axes)
    lowest, highest = extremes(x.dtype)
    left = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return call("new_full.default", x, left, lowest if name.startswith("amax") else highest)


@rule("any")
def any_(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return call("any.dims", x, axes) if axes else x


@rule("all")
def all_(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return call("all.dims", x, axes) if axes else x


@rule("prod")
def prod(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    for axis in reversed(axes):
        x = call("prod.dim_int", x, axis, dtype=call.spec.dtype)
    return x


@rule("argmax")
def argmax(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return call("argmax.default", x, axes[0])


@rule("argmin")
def argmin(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return call("argmin.default", x, axes[0])


@rule("cumsum")
def cumsum(call: AtenCaller, x: Any, *, axis: int) -> Any:
    return call("cumsum.default", x, axis, dtype=call.spec.dtype)


@rule("cumprod")
def cumprod(call: AtenCaller, x: Any, *, axis: int) -> Any:
    return call("cumprod.default", x, axis, dtype=call.spec.dtype)


@rule("cummax")
def cummax(call: AtenCaller, x: Any, *, axis: int) -> Any:
    return call("getitem", call("cummax.default", x, axis), 0)


@rule("cummin")
def cummin(call: AtenCaller, x: Any, *, axis: int) -> Any:
    return call("getitem", call("cummin.default", x, axis), 0)


# Views.


@rule("expand")
def expand(call: AtenCaller, x: Any, *, sizes: Any) -> Any:
    return call("expand.default", x, sizes)


@rule("permute")
def permute(call: AtenCaller, x: Any, *, dims: tuple[int, ...]) -> Any:
    return call("permute.default", x, dims)


@rule("view")
def view(call: AtenCaller, x: Any, *, sizes: Any) -> Any:
    return call("view.default", x, sizes)


@rule("unsqueeze")
def unsqueeze(call: AtenCaller, x: Any, *, axis: int) -> Any:
    return call("unsqueeze.default", x, axis)


@rule("squeeze")
def squeeze(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return call("squeeze.dims", x, axes)


@rule("slice")
def slice_(call: AtenCaller, x: Any, *, axis: int, start: Any, stop: Any, step: Any) -> Any:
    return call("slice.Tensor", x, axis, start, stop, step)


@rule("select")
def select(call: AtenCaller, x: Any, *, axis: int, index: Any) -> Any:
    return call("select.int", x, axis, index)


@rule("diagonal")
def diagonal(call: AtenCaller, x: Any, *, offset: int, axis1: int, axis2: int) -> Any:
    return call("diagonal.default", x, offset, axis1, axis2)


@rule("unfold")
def unfold(call: AtenCaller, x: Any, *, axis: int, size: Any, step: Any) -> Any:
    return call("unfold.default", x, axis, size, step)


@rule("as_strided")
def as_strided(call: AtenCaller, x: Any, *, sizes: Any, strides: Any, offset: Any) -> Any:
    return call("as_strided.default", x, sizes, strides, offset)


@rule("view_dtype")
def view_dtype(call: AtenCaller, x: Any, *, dtype: torch.dtype) -> Any:
    return call("view.dtype", x, dtype)


# Moves and scatters.


@rule("clone")
def clone(call: AtenCaller, x: Any, *, strides: Any) -> Any:
    if strides is None:
        return call("clone.default", x, memory_format=torch.contiguous_format)
    spec = call.spec
    fresh = call("empty_strided.default", spec.sizes, strides, dtype=spec.dtype, device=spec.device)
    return call("copy.default", fresh, x)


@rule("reshape")
def reshape(call: AtenCaller, x: Any, *, sizes: Any) -> Any:
    return call("_unsafe_view.default", call("clone.default", x, memory_format=torch.contiguous_format), sizes)


@rule("cat")
def cat(call: AtenCaller, *inputs: Any, axis: int) -> Any:
    return call("cat.default", list(inputs), axis)


@rule("flip")
def flip(call: AtenCaller, x: Any, *, axes: tuple[int, ...]) -> Any:
    return call("flip.default", x, axes)


@rule("pad")
def pad(call: AtenCaller, x: Any, value: Any, *, low: Any, high: Any) -> Any:
    """Pads with 0, then puts the value, which is a tensor, where a padded mask of ones is 0."""
    amounts = [amount for pair in zip(reversed(low), reversed(high), strict=True) for amount in pair]
    inside = call("constant_pad_nd.default", call("ones_like.default", x, dtype=torch.bool), amounts, 0)
    return call("where.self", inside, call("constant_pad_nd.default", x, amounts, 0), value)


@rule("gather")
def gather(call: AtenCaller, x: Any, index: Any, *, axis: int) -> Any:
    return call("gather.default", x, axis, index)


def index_list(axes: tuple[int, ...], indices: tuple[Any, ...]) -> list[Any]:
    """Indices at their axes, None between."""
    places: list[Any] = [None] * (axes[-1] + 1)
    for axis, one in zip(axes, indices, strict=True):
        places[axis] = one
    return places


@rule("index")
def index(call: AtenCaller, x: Any, *indices: Any, axes: tuple[int, ...]) -> Any:
    return call("index.Tensor", x, index_list(axes, indices))


@rule("index_put")
def index_put(call: AtenCaller, x: Any, *others: Any, axes: tuple[int, ...], accumulate: bool) -> Any:
    return call("index_put.default", x, index_list(axes, others[:-1]), others[-1], accumulate)


@rule("select_scatter")
def select_scatter(call: AtenCaller, x: Any, y: Any, *, axis: int, index: Any) -> Any:
    return call("select_scatter.default", x, y, axis, index)


@rule("slice_scatter")
def slice_scatter(call: AtenCaller, x: Any, y: Any, *, axis: int, start: Any, stop: Any, step: Any) -> Any:
    return call("slice_scatter.default", x, y, axis, start, stop, step)


@rule("diagonal_scatter")
def diagonal_scatter(call: AtenCaller, x: Any, y: Any, *, offset: int, axis1: int, axis2: int) -> Any:
    return call("diagonal_scatter.default", x, y, offset, axis1, axis2)


@rule("as_strided_scatter")
def as_strided_scatter(call: AtenCaller, x: Any, y: Any, *, sizes: Any, strides: Any, offset: Any) -> Any:
    return call("as_strided_scatter.default", x, y, sizes, strides, offset)


@rule("scatter")
def scatter(call: AtenCaller, x: Any, index: Any, src: Any, *, axis: int, reduce: str | None) -> Any:
    if reduce is None:
        return call("scatter.src", x, axis, index, src)
    if reduce == "sum":
        return call("scatter_add.default", x, axis, index, src)
    return call("scatter_reduce.two", x, axis, index, src, reduce, include_self=True)


# Creation, randomness, effects.


@rule("constant")
def constant(call: AtenCaller, *, value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    return call("full.default", [], value, dtype=dtype, device=device)


@rule("full")
def full(call: AtenCaller, x: Any, *, sizes: Any) -> Any:
    return call("clone.default", call("expand.default", x, sizes), memory_format=torch.contiguous_format)


@rule("iota")
def iota(call: AtenCaller, *, length: Any, start: Any, step: Any, dtype: torch.dtype, device: torch.device) -> Any:
    whole = torch.int64 if not dtype.is_floating_point else torch.float64
    counted = call("arange.default", length, dtype=whole, device=device)
    scaled = call("add.Scalar", call("mul.Scalar", counted, step), start)
    return call("_to_copy.default", scaled, dtype=dtype)


@rule("empty")
def empty(call: AtenCaller, *, sizes: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> Any:
    return call("zeros.default", sizes, dtype=dtype, device=device)


# fmt: off
DISTRIBUTIONS: dict[str, AtenRule] = {
    "uniform":     lambda call, x, low, high: call("uniform.default", x, low, high),
    "normal":      lambda call, x, mean, std: call("normal_functional.default", x, mean, std),
    "bernoulli":   lambda call, x, p: call("bernoulli.p", x, p),
    "randint":     lambda call, x, low, high: call("random.from", x, low, high),
    "exponential": lambda call, x, rate: call("exponential.default", x, rate),
}
# fmt: on


@rule("random")
def random(
    call: AtenCaller, *inputs: Any, distribution: str, params: Any, sizes: Any, dtype: torch.dtype, device: torch.device
) -> Any:
    """Draws from torch's default generator; a Bernoulli probability may be a tensor."""
    if inputs:
        return call("_to_copy.default", call("bernoulli.default", inputs[0]), dtype=dtype)
    return DISTRIBUTIONS[distribution](call, call("empty.memory_format", sizes, dtype=dtype, device=device), *params)


@rule("assert")
def assert_(call: AtenCaller, x: Any, *, message: str) -> Any:
    call("_assert_async.msg", x, message)
    return ()


@rule("local_scalar")
def local_scalar(call: AtenCaller, x: Any, *, kind: object, checks: object) -> Any:
    return call("_local_scalar_dense.default", x)
