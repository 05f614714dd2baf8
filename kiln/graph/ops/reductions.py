"""Reductions and scans.

aten.mean.dim(x, [1], keepdim=True)     =>     %1 = sum(x, axes=(1,));  %2 = div(%1, n);  %3 = unsqueeze(%2, axis=1)
aten.var.correction(x, [1])             =>     two passes: the mean, then the mean squared deviation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from kiln.graph.ir.build import Number
from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.emit import Emit, Operand, refuse_complex
from kiln.graph.ops.pointwise import abs_, copy, sub, truth
from kiln.graph.ops.promotion import OPMATH, promoted, promoting, widened
from kiln.graph.ops.registry import DECOMPOSITIONS, Decomposition, Results, decompose, library
from kiln.graph.ops.sizes import axes_of, axis_of
from kiln.graph.prims.meta import equal
from kiln.runtime.heard_warnings import warn_like
from kiln.symbolic import Expr, Int, product, rel_le, sym_max
from kiln.tensor.spec import CPU, TensorSpec

Dims = Sequence[int] | int | None


def keep(e: Emit, y: Node, axes: tuple[int, ...], keepdim: bool) -> Node:
    """With `keepdim`, the reduced dimensions with size 1, and the strides of a fresh tensor."""
    if keepdim and 0 in y.tensor.sizes:
        kept = list(y.tensor.sizes)
        for axis in axes:
            kept.insert(axis, 1)
        return e.node("view", y, sizes=tuple(kept))
    if keepdim:
        for axis in axes:
            y = e.node("unsqueeze", y, axis=axis)
    return y


def reduce(e: Emit, name: str, x: Node, axes: tuple[int, ...], keepdim: bool = False) -> Node:
    """A reduction; along no axes it is a copy. argmax and argmin take bool as uint8."""
    if name in ("amax", "amin"):
        refuse_complex(name, x)
    if not axes:
        return copy(e, x)
    if name in ("argmax", "argmin") and x.tensor.dtype is torch.bool:
        x = e.convert(x, torch.uint8)
    return keep(e, e.node(name, x, axes=axes), axes, keepdim)


def count(x: TensorSpec, axes: tuple[int, ...]) -> Int:
    """The number of elements that a reduction combines."""
    return product([x.sizes[axis] for axis in axes])


def _sum_dtype(x: Node, dtype: torch.dtype | None) -> torch.dtype:
    own = x.tensor.dtype
    return dtype or (own if own.is_floating_point or own.is_complex else torch.int64)


@decompose("sum.default", "sum.dim_IntList")
def sum_(e: Emit, x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Node:
    axes = axes_of(dim, x.tensor.rank, empty_is_all=True)
    return reduce(e, "sum", e.convert(x, _sum_dtype(x, dtype)), axes, keepdim)


@decompose("prod.default", "prod.dim_int")
def prod(e: Emit, x: Node, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Node:
    x, axes = e.convert(x, _sum_dtype(x, dtype)), axes_of(dim, x.tensor.rank)
    if x.tensor.dtype.is_complex and dim is None:  # ATen's kernel, which takes one axis
        for axis in reversed(axes[1:]):
            x = reduce(e, "prod", x, (axis,), False)
        axes = axes[:1]
    return reduce(e, "prod", x, axes, keepdim)


def divided(e: Emit, x: Node, by: Int) -> Node:
    """`x / by`, where `by` may be symbolic."""
    return x if by == 1 else e.pointwise("div", x, e.number(by, x.tensor.dtype, x.tensor.device))


def mean_over(e: Emit, x: Node, axes: tuple[int, ...], keepdim: bool = False) -> Node:
    return divided(e, reduce(e, "sum", x, axes, keepdim), count(x.tensor, axes))


@decompose("mean.default", "mean.dim")
def mean(e: Emit, x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Node:
    kind = dtype or x.tensor.dtype
    if not kind.is_floating_point and not kind.is_complex:
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype."
            f" Got: {kind}"
        )
    axes = axes_of(dim, x.tensor.rank, empty_is_all=True)
    wide = OPMATH.get(kind, kind)
    return e.convert(mean_over(e, e.convert(x, wide), axes, keepdim), kind)


Measure = Callable[[Emit, Node, tuple[int, ...], float], tuple[Node, ...]]


def variance(
    e: Emit, x: Node, axes: tuple[int, ...], correction: float = 1, squares: torch.dtype | None = None
) -> tuple[Node, Node, Node]:
    """Variance and mean along `axes` (dimensions kept), and the deviation from the mean; in two passes.

    `squares`: the dtype of the deviation and of the variance, if it is not that of `x`.
    """
    refuse_complex("var", x)
    middle = mean_over(e, x, axes, True)
    away = e.convert(e.pointwise("sub", x, middle), squares or x.tensor.dtype)
    total = reduce(e, "sum", e.pointwise("mul", away, away), axes, True)
    return e.pointwise("div", total, _freedom(e, total, count(x.tensor, axes), correction)), middle, away


def _freedom(e: Emit, like: Node, number: Int, correction: float) -> Operand:
    """The divisor of the squares, at least zero, so that the variance of no elements is NaN."""
    if not isinstance(number, Expr):
        return max(number - correction, 0) if number else 0
    dtype, device = like.tensor.dtype, like.tensor.device
    if correction == int(correction):
        return e.number(sym_max(number - int(correction), 0), dtype, device)
    return e.pointwise("maximum", e.pointwise("sub", e.number(number, dtype, device), correction), 0)


def _dropped(e: Emit, y: Node, axes: tuple[int, ...], keepdim: bool) -> Node:
    return y if keepdim or not axes else e.node("squeeze", y, axes=axes)


def _deviation(e: Emit, x: Node, axes: tuple[int, ...], correction: float) -> tuple[Node, Node]:
    """Standard deviation and mean. The CPU has float32's squares in float64, where they neither overflow nor vanish."""
    squares = torch.float64 if x.tensor.device.type == "cpu" else None
    spread, middle, _ = variance(e, x, axes, correction, squares)
    return e.convert(e.pointwise("sqrt", spread), x.tensor.dtype), middle


def _spread(name: str, measure: Measure, results: int) -> Decomposition:
    """The first `results` of what `measure` returns, as torch's function `name` does."""

    @widened
    def rule(e: Emit, x: Node, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Results:
        axes = axes_of(dim, x.tensor.rank, empty_is_all=True)
        if isinstance(correction, float) and not math.isfinite(correction):
            raise UnsupportedOp(op="a variance", reason=f"what its kernel makes of the correction {correction}")
        few = rel_le(count(x.tensor, axes), math.floor(1 if correction is None else correction))
        if not e.oracle.is_assumed(few) and e.oracle.decide(few):
            warn_like(lambda: getattr(torch, name)(torch.zeros(1, device=CPU)))
        found = measure(e, x, axes, 1 if correction is None else correction)[:results]
        parts = tuple([_dropped(e, part, axes, keepdim) for part in found])
        return parts if results > 1 else parts[0]

    return rule


DECOMPOSITIONS["var.correction"] = _spread("var", variance, 1)
DECOMPOSITIONS["std.correction"] = _spread("std", _deviation, 1)
DECOMPOSITIONS["var_mean.correction"] = _spread("var_mean", variance, 2)
DECOMPOSITIONS["std_mean.correction"] = _spread("std_mean", _deviation, 2)


# Maximum and minimum.


def extreme_axes(e: Emit, op: str, x: Node, dim: Dims) -> tuple[int, ...]:
    """The dimensions of `dim`, which must not be empty."""
    axes = axes_of(dim, x.tensor.rank, empty_is_all=True)
    for axis in axes:
        if equal(e.oracle, x.tensor.sizes[axis], 0):
            raise IndexError(f"{op}(): Expected reduction dim {axis} to have non-zero size.")
    return axes


def _extreme(name: str) -> Callable[..., Node]:
    def rule(e: Emit, x: Node, dim: Dims = (), keepdim: bool = False) -> Node:
        return reduce(e, name, x, extreme_axes(e, name, x, dim), keepdim)

    return rule


def _extreme_dim(name: str) -> Callable[..., tuple[Node, Node]]:
    def rule(e: Emit, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
        if x.tensor.dtype.is_complex:
            raise RuntimeError(f"{name}(): does not support complex input")
        axes = extreme_axes(e, name, x, dim)
        if not axes:
            return copy(e, x), e.number(0, torch.int64, x.tensor.device)
        return reduce(e, f"a{name}", x, axes, keepdim), reduce(e, f"arg{name}", x, axes, keepdim)

    return rule


def _arg_extreme(name: str) -> Callable[..., Node]:
    def rule(e: Emit, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        rank, axes = x.tensor.rank, extreme_axes(e, name, x, dim)
        if dim is None:
            flat = e.node("reshape", x, sizes=(x.tensor.numel(),))
            return keep(e, e.node(name, flat, axes=(0,)), tuple(range(rank)), keepdim)
        return reduce(e, name, x, axes, keepdim) if axes else e.number(0, torch.int64, x.tensor.device)

    return rule


for _name in ("max", "min"):
    DECOMPOSITIONS[f"a{_name}.default"] = DECOMPOSITIONS[f"{_name}.default"] = _extreme(f"a{_name}")
    DECOMPOSITIONS[f"{_name}.dim"] = _extreme_dim(_name)
    DECOMPOSITIONS[f"arg{_name}.default"] = _arg_extreme(f"arg{_name}")


@decompose("aminmax.default")
def aminmax(e: Emit, x: Node, *, dim: int | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    axes = extreme_axes(e, "aminmax", x, dim)
    return reduce(e, "amin", x, axes, keepdim), reduce(e, "amax", x, axes, keepdim)


# Any and all.


def _quantifier(name: str) -> Callable[..., Node]:
    def rule(e: Emit, x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
        found = reduce(e, name, truth(e, x), axes_of(dim, x.tensor.rank), keepdim)
        return e.convert(found, torch.uint8) if x.tensor.dtype is torch.uint8 else found

    return rule


for _name in ("any", "all"):
    for _overload in ("default", "dim", "dims"):
        DECOMPOSITIONS[f"{_name}.{_overload}"] = _quantifier(_name)
    DECOMPOSITIONS[f"_is_{_name}_true.default"] = _quantifier(_name)


@decompose("count_nonzero.default", "count_nonzero.dim_IntList")
def count_nonzero(e: Emit, x: Node, dim: Dims = None) -> Node:
    return reduce(e, "sum", e.convert(truth(e, x), torch.int64), axes_of(dim, x.tensor.rank, empty_is_all=True))


# Norms and log-sum-exp.


@decompose("logsumexp.default")
@promoting(1, floating=True)
@widened
def logsumexp(e: Emit, x: Node, dim: Dims, keepdim: bool = False) -> Node:
    p, axes = e.pointwise, axes_of(dim, x.tensor.rank)
    if x.tensor.rank and not axes:
        raise UnsupportedOp(op="aten.logsumexp.default", reason="what it does with no dimension depends on its kernel")
    top = reduce(e, "amax", x, axes, True)
    finite = p("where", p("isinf", top), e.number(0, x.tensor.dtype, x.tensor.device), top)
    total = reduce(e, "sum", p("exp", p("sub", x, finite)), axes, True)
    return _dropped(e, p("add", p("log", total), finite), axes, keepdim)


@decompose("linalg_vector_norm.default")
def vector_norm(
    e: Emit, x: Node, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Node:
    kind = dtype or x.tensor.dtype
    require_norm_dtype(x.tensor.dtype, kind)
    if kind.is_complex:
        kind = kind.to_real()
    if x.tensor.dtype.is_complex:
        x = abs_(e, x)
    wide = OPMATH.get(kind, kind)
    axes = axes_of(dim, x.tensor.rank, empty_is_all=True)
    alone = count(x.tensor, axes) == 1 and (x.tensor.rank > 0 or dim is None or dim == [])
    order = 1.0 if alone and ord != 0 else float(ord)  # of one element: itself, although its power may overflow
    return e.convert(_norm(e, e.convert(x, wide), order, axes, keepdim), kind)


def require_norm_dtype(own: torch.dtype, wanted: torch.dtype) -> None:
    """The dtype in which a norm is computed: of the kind of the input, and at least as wide."""
    if wanted.is_complex != own.is_complex:
        raise RuntimeError("linalg.vector_norm: dtype should be complex exactly if the input is")
    if not (wanted.is_floating_point or wanted.is_complex):
        raise RuntimeError(f"linalg.vector_norm: dtype should be floating point or complex, but got {wanted}")
    if not (own.is_floating_point or own.is_complex):
        raise RuntimeError(f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {own}")
    if torch.promote_types(own, wanted) is not wanted:
        raise RuntimeError(f"linalg.vector_norm: {own} should be convertible to {wanted} without narrowing")


def _norm(e: Emit, x: Node, order: float, axes: tuple[int, ...], keepdim: bool) -> Node:
    if math.isnan(order):
        raise UnsupportedOp(op="aten.linalg_vector_norm.default", reason="of order NaN")
    p = e.pointwise
    size = p("abs", x)
    if math.isinf(order) or order < 0:  # no identity
        extreme_axes(e, "linalg.vector_norm", x, axes)
    if math.isinf(order):
        return reduce(e, "amax" if order > 0 else "amin", size, axes, keepdim)
    if order == 0:
        return reduce(e, "sum", e.convert(truth(e, x), x.tensor.dtype), axes, keepdim)
    if order == 1:
        return reduce(e, "sum", size, axes, keepdim)
    if order == 2:
        return p("sqrt", reduce(e, "sum", p("mul", x, x), axes, keepdim))
    return p("pow", reduce(e, "sum", p("pow", size, order), axes, keepdim), 1 / order)


@decompose("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim_dtype")
def norm(
    e: Emit, x: Node, p: float | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Node:
    return vector_norm(e, x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@decompose("dist.default")
def dist(e: Emit, x: Node, y: Node, p: float = 2) -> Node:
    return vector_norm(e, sub(e, x, y), p)


@decompose("nansum.default")
def nansum(e: Emit, x: Node, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Node:
    if not x.tensor.dtype.is_floating_point:
        return sum_(e, x, dim, keepdim, dtype=dtype)
    zero = e.number(0, x.tensor.dtype, x.tensor.device)
    return sum_(e, e.pointwise("where", e.pointwise("isnan", x), zero, x), dim, keepdim, dtype=dtype)


@decompose("trace.default")
def trace(e: Emit, x: Node) -> Node:
    if x.tensor.rank != 2:
        raise RuntimeError("trace: expected a matrix")
    if x.tensor.dtype in OPMATH and x.tensor.device.type == "cpu":  # not every torch takes it
        return e.library("aten.trace.default", (x,), {}, x.tensor.with_sizes(()))
    return sum_(e, e.node("diagonal", x, offset=0, axis1=0, axis2=1))


@decompose("isin.Tensor_Tensor")
def isin(e: Emit, x: Node, among: Node, *, assume_unique: bool = False, invert: bool = False) -> Node:
    """Compares all pairs: eager calls it for few test elements."""
    if torch.bool in (x.tensor.dtype, among.tensor.dtype):
        raise RuntimeError("Unsupported input type encountered for isin(): Bool")
    spread = e.node("unsqueeze", x, axis=x.tensor.rank)
    flat = e.node("reshape", among, sizes=(among.tensor.numel(),))
    found = e.node("any", e.pointwise("eq", *promoted(e, spread, flat)), axes=(x.tensor.rank,))
    return e.pointwise("logical_not", found) if invert else found


@decompose("isin.Tensor_Scalar")
def isin_number(e: Emit, x: Node, test: Number, *, assume_unique: bool = False, invert: bool = False) -> Node:
    if isinstance(test, bool | complex):
        raise RuntimeError(f"Unsupported input type encountered for isin(): {type(test).__name__}")
    return e.pointwise("ne" if invert else "eq", *promoted(e, x, test))


# Scans.


def _scan(name: str) -> Callable[..., Node]:
    def rule(e: Emit, x: Node, dim: int, *, dtype: torch.dtype | None = None) -> Node:
        summed, axis = e.convert(x, _sum_dtype(x, dtype)), axis_of(dim, x.tensor.rank)
        if not x.tensor.rank:
            return copy(e, summed)
        return e.node(name, summed, axis=axis)

    return rule


DECOMPOSITIONS["cumsum.default"] = _scan("cumsum")
DECOMPOSITIONS["cumprod.default"] = _scan("cumprod")


@library("cummax.default", "cummin.default")
def cumulative_extreme(e: Emit, x: Node, dim: int) -> tuple[TensorSpec, TensorSpec]:
    spec = x.tensor.with_sizes(x.tensor.sizes)
    return spec, spec.with_dtype(torch.int64)


@library("logcumsumexp.default")
def logcumsumexp(e: Emit, x: Node, dim: int) -> TensorSpec:
    return x.tensor.with_sizes(x.tensor.sizes)
