"""The column `aten`: each primitive op as calls of ATen overloads.

    fma(x, y, z)   =>   _to_copy(add(mul(_to_copy(x, f64), _to_copy(y, f64)), _to_copy(z, f64)), f32)

A rule is `rule(call, *inputs, **attrs)`; `call(name, *args, **kwargs)` runs the overload on real tensors
(`interpret.py`) or makes an fx node (`fx_view.py`), so both share this table. `call.spec` is the predicted result.
Ops without a rule are handled where graphs are walked: inputs, items, library ops, nested graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Column, Kind
from kiln.symbolic import Int
from kiln.tensor.dtypes import extremes
from kiln.tensor.spec import TensorSpec

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
"""The representation of a tensor: a real tensor, an fx node."""
Sizes = Sequence[object]


class AtenCaller(Protocol[V_co]):
    """Runs (or records) an ATen overload, named without `aten.`."""

    @property
    def spec(self) -> TensorSpec: ...

    def __call__(self, name: str, *args: object, **kwargs: object) -> V_co: ...


AtenRule = Callable[..., object]

ATEN_RULES: Column[AtenRule] = PRIMS.column(
    "aten",
    required=frozenset({Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.VIEW, Kind.DATA_MOVEMENT, Kind.SCATTER}),
)
rule = ATEN_RULES


def overload(op: str, target: str) -> AtenRule:
    """The rule that calls this overload with the inputs, then the attributes, in the order of the op's row."""
    keys = PRIMS[op].attrs

    def run(call: AtenCaller[V], *inputs: V, **attrs: object) -> V:
        return call(target, *inputs, *[attrs[key] for key in keys])

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
    "expand": "expand.default", "permute": "permute.default", "view": "view.default",
    "unsqueeze": "unsqueeze.default", "squeeze": "squeeze.dims", "slice": "slice.Tensor", "select": "select.int",
    "diagonal": "diagonal.default", "unfold": "unfold.default", "as_strided": "as_strided.default",
    "view_dtype": "view.dtype", "flip": "flip.default", "select_scatter": "select_scatter.default",
    "slice_scatter": "slice_scatter.default", "diagonal_scatter": "diagonal_scatter.default",
    "as_strided_scatter": "as_strided_scatter.default",
}.items():
    rule[_name] = overload(_name, _target)
# fmt: on


@rule("fma")
def fma(call: AtenCaller[V], x: V, y: V, z: V) -> V:
    dtype = call.spec.dtype
    if dtype.itemsize > 4:
        return call("addcmul.default", z, x, y)
    # The product of two numbers of up to 32 bits is exact in 64.
    wide = (call("_to_copy.default", operand, dtype=torch.float64) for operand in (z, x, y))
    return call("_to_copy.default", call("addcmul.default", *wide), dtype=dtype)


# Reductions and scans.


def extreme(name: str, call: AtenCaller[V], x: V, *, axes: tuple[int, ...]) -> V:
    """For rows without elements, which ATen refuses: the neutral element."""
    if not axes:
        return x
    if not isinstance(x, torch.Tensor) or all(x.shape[axis] for axis in axes):
        return call(f"{name}.default", x, axes)
    lowest, highest = extremes(x.dtype)
    left = [size for axis, size in enumerate(x.shape) if axis not in axes]
    return call("new_full.default", x, left, lowest if name == "amax" else highest)


def quantifier(name: str, call: AtenCaller[V], x: V, *, axes: tuple[int, ...]) -> V:
    return call(f"{name}.dims", x, axes) if axes else x


def extreme_index(name: str, call: AtenCaller[V], x: V, *, axes: tuple[int, ...]) -> V:
    return call(f"{name}.default", x, axes[0])


def running_total(name: str, call: AtenCaller[V], x: V, *, axis: int) -> V:
    return call(f"{name}.default", x, axis, dtype=call.spec.dtype)


def running_extreme(name: str, call: AtenCaller[V], x: V, *, axis: int) -> V:
    return call("getitem", call(f"{name}.default", x, axis), 0)


# fmt: off
for _rule, _names in (
    (extreme, ("amax", "amin")), (quantifier, ("any", "all")), (extreme_index, ("argmax", "argmin")),
    (running_total, ("cumsum", "cumprod")), (running_extreme, ("cummax", "cummin")),
):
    for _name in _names:
        rule[_name] = partial(_rule, _name)
# fmt: on


@rule("prod")
def prod(call: AtenCaller[V], x: V, *, axes: tuple[int, ...]) -> V:
    for axis in reversed(axes):
        x = call("prod.dim_int", x, axis, dtype=call.spec.dtype)
    return x


# Data movement and scatters.

rule("materialised")(lambda call, x, *others: x)


def axes_in_memory(spec: TensorSpec) -> list[int] | None:
    """The axes of a tensor without gaps, outermost first; None if there are gaps, or no elements."""
    order, left = list[int](), list(range(spec.rank))
    step: Int = 1
    while left:
        fitting = [axis for axis in left if spec.strides[axis] == step and spec.sizes[axis] != 0]
        if not fitting:
            return None
        axis = min(fitting, key=lambda axis: (spec.sizes[axis] != 1, -axis))
        left.remove(axis)
        order.insert(0, axis)
        step = step * spec.sizes[axis]
    return order


@rule("clone")
def clone(call: AtenCaller[V], x: V, *, strides: object) -> V:
    if strides is None:
        return call("clone.default", x, memory_format=torch.contiguous_format)
    spec = call.spec
    if (order := axes_in_memory(spec)) is not None:
        moved = call("permute.default", x, order)
        packed = call("clone.default", moved, memory_format=torch.contiguous_format)
        return call("permute.default", packed, [order.index(axis) for axis in range(spec.rank)])
    fresh = call("empty_strided.default", spec.sizes, strides, dtype=spec.dtype, device=spec.device)
    return call("copy.default", fresh, x)


@rule("reshape")
def reshape(call: AtenCaller[V], x: V, *, sizes: Sizes) -> V:
    return call("_unsafe_view.default", call("clone.default", x, memory_format=torch.contiguous_format), sizes)


@rule("pad")
def pad(call: AtenCaller[V], x: V, value: V, *, low: Sizes, high: Sizes) -> V:
    """Pads with 0, then selects the value, a tensor, where a mask of ones padded with 0 is 0."""
    amounts = [amount for pair in zip(reversed(low), reversed(high), strict=True) for amount in pair]
    inside = call("constant_pad_nd.default", call("ones_like.default", x, dtype=torch.bool), amounts, 0)
    return call("where.self", inside, call("constant_pad_nd.default", x, amounts, 0), value)


def index_list(axes: tuple[int, ...], indices: tuple[V, ...]) -> list[V | None]:
    """Indices at their axes, None between."""
    found = dict(zip(axes, indices, strict=True))
    return [found.get(axis) for axis in range(axes[-1] + 1)]


@rule("index")
def index(call: AtenCaller[V], x: V, *indices: V, axes: tuple[int, ...]) -> V:
    return call("index.Tensor", x, index_list(axes, indices))


@rule("index_put")
def index_put(call: AtenCaller[V], x: V, *others: V, axes: tuple[int, ...], accumulate: bool) -> V:
    return call("index_put.default", x, index_list(axes, others[:-1]), others[-1], accumulate)


@rule("scatter")
def scatter(call: AtenCaller[V], x: V, index: V, src: V, *, axis: int, reduce: str | None) -> V:
    if reduce is None:
        return call("scatter.src", x, axis, index, src)
    if reduce == "sum":
        return call("scatter_add.default", x, axis, index, src)
    return call("scatter_reduce.two", x, axis, index, src, reduce, include_self=True)


# Creation, randomness, effects.


@rule("constant")
def constant(call: AtenCaller[V], *, value: V, dtype: torch.dtype, device: torch.device) -> V:
    return call("full.default", [], value, dtype=dtype, device=device)


@rule("full")
def full(call: AtenCaller[V], x: V, *, sizes: Sizes) -> V:
    return call("clone.default", call("expand.default", x, sizes), memory_format=torch.contiguous_format)


@rule("iota")
def iota(
    call: AtenCaller[V], *, length: object, start: object, step: object, dtype: torch.dtype, device: torch.device
) -> V:
    counter = torch.int64 if not dtype.is_floating_point else torch.float64
    counted = call("arange.default", length, dtype=counter, device=device)
    scaled = call("add.Scalar", call("mul.Scalar", counted, step), start)
    return call("_to_copy.default", scaled, dtype=dtype)


@rule("empty")
def empty(call: AtenCaller[V], *, sizes: Sizes, strides: object, dtype: torch.dtype, device: torch.device) -> V:
    return call("zeros.default", sizes, dtype=dtype, device=device)


# fmt: off
DISTRIBUTIONS = {
    "uniform":     "uniform.default",
    "normal":      "normal_functional.default",
    "bernoulli":   "bernoulli.p",
    "randint":     "random.from",
    "exponential": "exponential.default",
}
# fmt: on


@rule("random_seed")
def random_seed(call: AtenCaller[V], *, device: torch.device) -> V:
    """Read by nobody: in this form numbers come from torch's generator."""
    return call("zeros.default", [], dtype=torch.int64, device=device)


@rule("random")
def random(
    call: AtenCaller[V],
    seed: V,
    *inputs: V,
    distribution: str,
    params: tuple[object, ...],
    sizes: Sizes,
    dtype: torch.dtype,
    device: torch.device,
) -> V:
    """From torch's default generator; Bernoulli probabilities may be a tensor."""
    if inputs:
        return call("_to_copy.default", call("bernoulli.default", inputs[0]), dtype=dtype)
    return call(DISTRIBUTIONS[distribution], call("empty.memory_format", sizes, dtype=dtype, device=device), *params)


@rule("assert")
def assert_(call: AtenCaller[V], x: V, *, message: str) -> tuple[()]:
    call("_assert_async.msg", x, message)
    return ()


@rule("local_scalar")
def local_scalar(call: AtenCaller[V], x: V, *, kind: object, checks: object) -> V:
    return call("_local_scalar_dense.default", x)


# fmt: off
EXPRESSIONS: dict[str, AtenRule] = {
    "trunc_div": lambda call, x, y: call("div.Tensor_mode", x, y, rounding_mode="trunc"),
    "convert":   lambda call, x, dtype: call("_to_copy.default", x, dtype=dtype),
    "bitcast":   lambda call, x, dtype: call("clone.default", call("view.dtype", x, dtype)),
    "sum":       lambda call, x, axes: call("sum.dim_IntList", x, axes, dtype=call.spec.dtype) if axes else x,
    "cat":       lambda call, *inputs, axis: call("cat.default", list(inputs), axis),
    "gather":    lambda call, x, index, axis: call("gather.default", x, axis, index),
}
# fmt: on
for _name, _expression in EXPRESSIONS.items():
    rule[_name] = _expression
