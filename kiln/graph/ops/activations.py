"""Activations and their gradients as primitives.

aten.silu_backward(g, x)     =>     s = sigmoid(x);  g * s * (1 + x*(1 - s))
"""

from __future__ import annotations

import math

import torch

from kiln.graph.ir.build import Number
from kiln.graph.ir.node import Node
from kiln.graph.ops.creation import relaid
from kiln.graph.ops.emit import Emit, refuse_complex
from kiln.graph.ops.pointwise import clamped, conj, times
from kiln.graph.ops.promotion import elementwise, widened
from kiln.graph.ops.registry import decompose
from kiln.graph.ops.sizes import axis_of
from kiln.graph.prims.meta import matches
from kiln.symbolic.values import Real
from kiln.tensor.spec import contiguous_strides

ROOT_HALF = 0.7071067811865476  # sqrt(1/2)
ROOT_TWO_OVER_PI = 0.7978845608028654
NORMAL_PEAK = 0.3989422804014327  # density of the normal distribution at 0
NEGLIGIBLE = -60  # exp of less is 0: beside 1 it does not count, and subnormal gradients make matrix products slow
SIXTH = 0.1666666716337204  # in float32
TANH_CUBE = 0.044715  # of the tanh approximation of GELU (Hendrycks and Gimpel, 2016)


def number_like(e: Emit, value: Number, x: Node) -> Node:
    return e.number(value, x.tensor.dtype, x.tensor.device)


def one_minus(e: Emit, x: Node) -> Node:
    return e.pointwise("sub", number_like(e, 1, x), x)


def zero_where(e: Emit, condition: Node, x: Node) -> Node:
    return e.pointwise("where", condition, number_like(e, 0, x), x)


decompose("relu.default")(lambda e, x: e.pointwise("maximum", x, 0))
decompose("relu6.default")(lambda e, x: clamped(e, x, 0, 6))


@decompose("hardtanh.default")
def hardtanh(e: Emit, x: Node, min_val: Number = -1, max_val: Number = 1) -> Node:
    negative = any(isinstance(limit, int | float) and limit < 0 for limit in (min_val, max_val))
    if negative and not x.tensor.dtype.is_signed:
        raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    return clamped(e, x, min_val, max_val)


@decompose("hardtanh_backward.default")
@widened
def hardtanh_backward(e: Emit, grad: Node, x: Node, min_val: Number, max_val: Number) -> Node:
    p = e.pointwise
    return zero_where(e, p("bitwise_or", p("le", x, min_val), p("ge", x, max_val)), grad)


@decompose("threshold.default")
@widened
def threshold(e: Emit, x: Node, threshold: Number, value: Number) -> Node:
    return e.pointwise("where", e.pointwise("le", x, threshold), number_like(e, value, x), x)


@decompose("threshold_backward.default")
@widened
def threshold_backward(e: Emit, grad: Node, x: Node, threshold: Number) -> Node:
    return zero_where(e, e.pointwise("le", x, threshold), grad)


@decompose("gelu.default")
@elementwise
def gelu(e: Emit, x: Node, *, approximate: str = "none") -> Node:
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    p = e.pointwise
    if approximate == "tanh":
        refuse_complex("gelu", x)
        curve = p("tanh", _tanh_argument(e, x))
    else:
        curve = p("erf", p("mul", x, ROOT_HALF))
    return p("mul", p("mul", x, 0.5), p("add", curve, 1))


def _tanh_argument(e: Emit, x: Node) -> Node:
    p = e.pointwise
    cube = p("mul", p("mul", x, x), x)
    return p("mul", p("add", x, p("mul", cube, TANH_CUBE)), ROOT_TWO_OVER_PI)


@decompose("gelu_backward.default")
@elementwise
def gelu_backward(e: Emit, grad: Node, x: Node, *, approximate: str = "none") -> Node:
    p = e.pointwise
    if approximate == "tanh":
        curve = p("tanh", _tanh_argument(e, x))
        slope = p("mul", p("add", p("mul", p("mul", x, x), 3 * TANH_CUBE), 1), ROOT_TWO_OVER_PI)
        left = p("mul", p("add", curve, 1), 0.5)
        right = p("mul", p("mul", p("mul", x, 0.5), one_minus(e, p("mul", curve, curve))), slope)
    else:
        left = p("mul", p("add", p("erf", p("mul", x, ROOT_HALF)), 1), 0.5)
        exponent = p("mul", p("mul", x, x), -0.5)
        density = zero_where(e, p("lt", exponent, NEGLIGIBLE), p("exp", exponent))
        right = p("mul", x, p("mul", density, NORMAL_PEAK))
    return p("mul", grad, p("add", left, right))


decompose("silu.default")(elementwise(lambda e, x: e.pointwise("mul", x, e.pointwise("sigmoid", x))))


@decompose("silu_backward.default")
@elementwise
def silu_backward(e: Emit, grad: Node, x: Node) -> Node:
    p, s = e.pointwise, e.pointwise("sigmoid", x)
    return p("mul", p("mul", grad, s), p("add", p("mul", x, one_minus(e, s)), 1))


@decompose("sigmoid_backward.default")
@elementwise
def sigmoid_backward(e: Emit, grad: Node, y: Node) -> Node:
    if y.tensor.dtype.is_complex:
        return e.pointwise("mul", grad, conj(e, e.pointwise("mul", one_minus(e, y), y)))
    return e.pointwise("mul", e.pointwise("mul", grad, one_minus(e, y)), y)


@decompose("tanh_backward.default")
@elementwise
def tanh_backward(e: Emit, grad: Node, y: Node) -> Node:
    slope = one_minus(e, e.pointwise("mul", y, y))
    return e.pointwise("mul", grad, conj(e, slope) if y.tensor.dtype.is_complex else slope)


@decompose("elu.default")
@elementwise
def elu(e: Emit, x: Node, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Node:
    p = e.pointwise
    below = times(e, p("expm1", times(e, x, input_scale)), alpha * scale)
    return p("where", p("lt", x, 0), below, times(e, x, scale))


@decompose("celu.default")
def celu(e: Emit, x: Node, alpha: Number = 1.0) -> Node:
    return elu(e, x, alpha, 1, 1.0 / (alpha if isinstance(alpha, Real) else float(alpha.real)))


@decompose("elu_backward.default")
@elementwise
def elu_backward(
    e: Emit, grad: Node, alpha: Number, scale: Number, input_scale: Number, is_result: bool, y: Node
) -> Node:
    p, factor = e.pointwise, alpha * scale
    if is_result:
        below = p("mul", times(e, grad, input_scale), p("add", y, factor))
    else:
        below = p("mul", times(e, grad, input_scale * factor), p("exp", times(e, y, input_scale)))
    return p("where", p("le", y, 0), below, times(e, grad, scale))


@decompose("leaky_relu.default")
@elementwise
def leaky_relu(e: Emit, x: Node, negative_slope: Number = 0.01) -> Node:
    return e.pointwise("where", e.pointwise("gt", x, 0), x, times(e, x, negative_slope))


@decompose("leaky_relu_backward.default")
@elementwise
def leaky_relu_backward(e: Emit, grad: Node, x: Node, negative_slope: Number, self_is_result: bool) -> Node:
    if self_is_result and not isinstance(negative_slope, complex) and negative_slope < 0:
        raise RuntimeError("In-place leakyReLu backward calculation is triggered with a negative slope")
    return e.pointwise("where", e.pointwise("gt", x, 0), grad, times(e, grad, negative_slope))


@decompose("_prelu_kernel.default")
@elementwise
def prelu(e: Emit, x: Node, weight: Node) -> Node:
    return e.pointwise("where", e.pointwise("gt", x, 0), x, e.pointwise("mul", x, weight))


@decompose("_prelu_kernel_backward.default")
@elementwise
def prelu_backward(e: Emit, grad: Node, x: Node, weight: Node) -> tuple[Node, Node]:
    p = e.pointwise
    positive = p("gt", x, 0)
    return p("where", positive, grad, p("mul", grad, weight)), zero_where(e, positive, p("mul", grad, x))


@decompose("softplus.default")
@elementwise
def softplus(e: Emit, x: Node, beta: Number = 1, threshold: Number = 20) -> Node:
    p, scaled = e.pointwise, times(e, x, beta)
    curve = p("log1p", p("exp", scaled))
    return p("where", p("gt", scaled, threshold), x, curve if beta == 1 else p("div", curve, beta))


@decompose("softplus_backward.default")
@elementwise
def softplus_backward(e: Emit, grad: Node, x: Node, beta: Number, threshold: Number) -> Node:
    p, scaled = e.pointwise, times(e, x, beta)
    return p("where", p("gt", scaled, threshold), grad, p("mul", grad, p("sigmoid", scaled)))


def _sixth(e: Emit, x: Node) -> Node:
    """On an accelerator, eager multiplies by the float32 number nearest to 1/6, for float64 too."""
    if x.tensor.device.type == "cpu":
        return e.pointwise("div", x, 6)
    return e.pointwise("mul", x, SIXTH)


decompose("hardsigmoid.default")(elementwise(lambda e, x: _sixth(e, clamped(e, e.pointwise("add", x, 3), 0, 6))))


@decompose("hardsigmoid_backward.default")
@elementwise
def hardsigmoid_backward(e: Emit, grad: Node, x: Node) -> Node:
    p = e.pointwise
    return zero_where(e, p("bitwise_or", p("le", x, -3), p("ge", x, 3)), _sixth(e, grad))


@decompose("hardswish.default")
@elementwise
def hardswish(e: Emit, x: Node) -> Node:
    p = e.pointwise
    return _sixth(e, p("mul", x, clamped(e, p("add", x, 3), 0, 6)))


@decompose("hardswish_backward.default")
@elementwise
def hardswish_backward(e: Emit, grad: Node, x: Node) -> Node:
    p = e.pointwise
    middle = p("mul", grad, p("add", p("div", x, 3), 0.5))
    inside = p("where", p("lt", x, 3), middle, grad)
    return zero_where(e, p("le", x, -3), inside)


def _soft_tanh(e: Emit, x: Node) -> Node:
    return e.pointwise("tanh", e.pointwise("log1p", e.pointwise("exp", x)))


decompose("mish.default")(elementwise(lambda e, x: e.pointwise("mul", x, _soft_tanh(e, x))))


@decompose("mish_backward.default")
@elementwise
def mish_backward(e: Emit, grad: Node, x: Node) -> Node:
    p, curve = e.pointwise, _soft_tanh(e, x)
    bend = p("mul", p("mul", x, p("sigmoid", x)), one_minus(e, p("mul", curve, curve)))
    return p("mul", grad, p("add", curve, bend))


@decompose("log_sigmoid_forward.default")
@widened
def log_sigmoid_forward(e: Emit, x: Node) -> tuple[Node, Node]:
    """The result, and eager's buffer: on the CPU exp(-|x|), both contiguous; elsewhere empty."""
    p = e.pointwise
    small = p("exp", p("neg", p("abs", x)))
    result = p("sub", p("minimum", x, 0), p("log1p", small))
    if x.tensor.device.type == "cpu":
        strides = contiguous_strides(x.tensor.sizes)
        return relaid(e, result, strides), relaid(e, small, strides)
    return result, e.node("empty", sizes=(0,), strides=(1,), dtype=x.tensor.dtype, device=x.tensor.device)


@decompose("log_sigmoid_backward.default")
@widened
def log_sigmoid_backward(e: Emit, grad: Node, x: Node, buffer: Node) -> Node:
    made = e.pointwise("mul", grad, e.pointwise("sigmoid", e.pointwise("neg", x)))
    return relaid(e, made, e.preserved_strides(grad.tensor))


def split_in_two(e: Emit, x: Node, dim: int) -> tuple[Node, Node]:
    axis = axis_of(dim, x.tensor.rank)
    size = x.tensor.sizes[axis]
    if not matches(e.oracle, size % 2, 0):
        raise RuntimeError(f"Halving dimension must be even, but dimension {axis} is size {size}")
    middle = size // 2
    first = e.node("slice", x, axis=axis, start=0, stop=middle, step=1)
    return first, e.node("slice", x, axis=axis, start=middle, stop=size, step=1)


@decompose("glu.default")
@widened
def glu(e: Emit, x: Node, dim: int = -1) -> Node:
    first, second = split_in_two(e, x, dim)
    return e.pointwise("mul", first, e.pointwise("sigmoid", second))


@decompose("glu_backward.default")
@widened
def glu_backward(e: Emit, grad: Node, x: Node, dim: int) -> Node:
    p, (first, second) = e.pointwise, split_in_two(e, x, dim)
    gate = p("sigmoid", second)
    left = p("mul", grad, gate)
    right = p("mul", p("mul", p("mul", one_minus(e, gate), gate), grad), first)
    return e.node("cat", left, right, axis=axis_of(dim, x.tensor.rank))


@decompose("hardshrink.default")
def hardshrink(e: Emit, x: Node, lambd: Number = 0.5) -> Node:
    p = e.pointwise
    return zero_where(e, p("le", p("abs", x), lambd), x)


@decompose("hardshrink_backward.default", "softshrink_backward.default")
def hardshrink_backward(e: Emit, grad: Node, x: Node, lambd: Number) -> Node:
    return zero_where(e, e.pointwise("le", e.pointwise("abs", x), lambd), grad)


@decompose("softshrink.default")
@elementwise
def softshrink(e: Emit, x: Node, lambd: Number = 0.5) -> Node:
    if isinstance(lambd, int | float) and not 0 <= lambd <= torch.finfo(x.tensor.dtype).max:
        raise RuntimeError(f"lambda must be in range [0, {torch.finfo(x.tensor.dtype).max}], but found {lambd}")
    p = e.pointwise
    moved = p("where", p("gt", x, lambd), p("sub", x, lambd), p("add", x, lambd))
    shrunk = zero_where(e, p("le", p("abs", x), lambd), moved)
    return p("where", p("isnan", x), x, shrunk)


@decompose("logit_backward.default")
@elementwise
def logit_backward(e: Emit, grad: Node, x: Node, eps: float | Real | None = None) -> Node:
    p = e.pointwise
    slope = p("div", grad, p("abs", p("mul", x, one_minus(e, x))))
    if eps is None or (not isinstance(eps, Real) and eps < 0):
        return p("where", p("bitwise_and", p("ge", x, 0), p("le", x, 1)), slope, math.nan)
    low, high = (e.number(bound, x.tensor.dtype, x.tensor.device) for bound in (eps, 1 - eps))
    outside = p("bitwise_or", p("lt", x, low), p("gt", x, high))
    return zero_where(e, outside, slope)
