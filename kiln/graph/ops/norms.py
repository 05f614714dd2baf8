"""Layer, group and batch normalisation, and their gradients.

    aten.native_layer_norm(x, [n], w, b, eps)
        =>   m = mean(x);  d = x - m;  r = rsqrt(mean(d*d) + eps);  (d*r*w + b, m, r)

Variances take two passes. For reduced precision, statistics are in float32.
Batch norm in training updates the running statistics, which its schema does not declare (`MUTATIONS`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.creation import packed, relaid
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.promotion import OPMATH
from kiln.graph.ops.reductions import count, divided, mean_over, reduce, variance
from kiln.graph.ops.registry import Effects, Results, decompose, mutation
from kiln.graph.ops.sizes import matching_sizes
from kiln.graph.prims.meta import format_strides, suggested_format
from kiln.symbolic import Expr, Int, product
from kiln.tensor.spec import TensorSpec

Maybe = Node | None
Mask = Sequence[bool]


def wide(e: Emit, x: Node) -> Node:
    """`x` in the dtype of statistics."""
    return e.convert(x, OPMATH.get(x.tensor.dtype, x.tensor.dtype))


def wide_or_none(e: Emit, x: Maybe) -> Maybe:
    return None if x is None else wide(e, x)


def standardised(e: Emit, x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node, Node]:
    """`x` with mean 0 and variance 1 along `axes`, its mean, and its inverse standard deviation."""
    spread, middle, away = variance(e, x, axes, 0)
    scale = e.pointwise("rsqrt", e.pointwise("add", spread, eps))
    return e.pointwise("mul", away, scale), middle, scale


def affine(e: Emit, y: Node, weight: Maybe, bias: Maybe) -> Node:
    if weight is not None:
        y = e.pointwise("mul", y, weight)
    return y if bias is None else e.pointwise("add", y, bias)


def contiguous(e: Emit, y: Node, dtype: torch.dtype) -> Node:
    return packed(e, e.convert(y, dtype))


# Layer norm.


def require_dtypes(x: TensorSpec, *parameters: Maybe) -> None:
    """Parameters have the dtype of the input, or the one in which eager computes."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise NotImplementedError(f"the norm is not implemented for {x.dtype}")
    for parameter in parameters:
        if parameter is not None and parameter.tensor.dtype not in (x.dtype, OPMATH.get(x.dtype)):
            raise RuntimeError(f"expected scalar type {x.dtype} but found {parameter.tensor.dtype}")
    kinds = {parameter.tensor.dtype for parameter in parameters if parameter is not None}
    if len(kinds) > 1 and x.device.type == "cpu":
        raise RuntimeError(f"mixed dtype (CPU): all parameters must have one dtype, but have {kinds}")


def require_parameters(e: Emit, op: str, x: TensorSpec, channels: Int, *parameters: Maybe) -> None:
    """A number per channel."""
    require_dtypes(x, *parameters)
    for parameter in parameters:
        if parameter is not None and not matching_sizes(e, parameter.tensor.sizes, (channels,)):
            raise RuntimeError(f"{op}: expected parameters of {channels} elements, got {parameter.tensor.sizes}")


@decompose("native_layer_norm.default")
def layer_norm(
    e: Emit, x: Node, normalized_shape: Sequence[Int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[Node, Node, Node]:
    spec = x.tensor
    if len(normalized_shape) > spec.rank or not matching_sizes(
        e, spec.sizes[spec.rank - len(normalized_shape) :], normalized_shape
    ):
        raise RuntimeError(
            f"Given normalized_shape={list(normalized_shape)}, expected input with shape [*, "
            f"{', '.join(map(str, normalized_shape))}], but got input of size{list(spec.sizes)}"
        )
    if not normalized_shape:
        raise RuntimeError("Expected normalized_shape to be at least 1-dimensional")
    for parameter in (weight, bias):
        if parameter is not None and not matching_sizes(e, parameter.tensor.sizes, normalized_shape):
            raise RuntimeError("Expected weight and bias to be of same shape as normalized_shape")
    require_dtypes(spec, weight, bias)
    axes = tuple(range(spec.rank - len(normalized_shape), spec.rank))
    y, middle, scale = standardised(e, wide(e, x), axes, eps)
    y = affine(e, y, wide_or_none(e, weight), wide_or_none(e, bias))
    kept = _saved_dtype(x, weight, bias)
    return contiguous(e, y, spec.dtype), e.convert(middle, kept), e.convert(scale, kept)


def _saved_dtype(x: Node, *parameters: Maybe) -> torch.dtype:
    """The dtype of returned statistics: on the CPU the input's, unless a parameter differs; elsewhere the wide one."""
    dtype = x.tensor.dtype
    alike = all(parameter is None or parameter.tensor.dtype is dtype for parameter in parameters)
    return dtype if alike and x.tensor.device.type == "cpu" else OPMATH.get(dtype, dtype)


def _project(e: Emit, grad: Node, y: Node, scale: Node, mean: Callable[[Node], Node]) -> Node:
    """The gradient of `standardised`: `grad` without its mean and its projection on `y`, times the scale."""
    p = e.pointwise
    along = mean(p("mul", grad, y))
    return p("mul", p("sub", p("sub", grad, mean(grad)), p("mul", y, along)), scale)


def _mean_along(e: Emit, axes: tuple[int, ...]) -> Callable[[Node], Node]:
    return lambda x: mean_over(e, x, axes, True)


@decompose("native_layer_norm_backward.default")
def layer_norm_backward(
    e: Emit, grad: Node, x: Node, normalized_shape: Sequence[Int], mean: Node, rstd: Node, weight: Maybe, bias: Maybe,
    output_mask: Mask,
) -> tuple[Maybe, Maybe, Maybe]:  # fmt: skip
    p, spec = e.pointwise, x.tensor
    inner = tuple(range(spec.rank - len(normalized_shape), spec.rank))
    outer = tuple(range(spec.rank - len(normalized_shape)))
    given, scale = wide(e, grad), wide(e, rstd)
    y = p("mul", p("sub", wide(e, x), wide(e, mean)), scale)
    inside = given if weight is None else p("mul", given, wide(e, weight))
    to_x = contiguous(e, _project(e, inside, y, scale, _mean_along(e, inner)), spec.dtype) if output_mask[0] else None
    to_weight = reduce(e, "sum", p("mul", given, y), outer) if output_mask[1] and weight is not None else None
    to_bias = reduce(e, "sum", given, outer) if output_mask[2] and bias is not None else None
    return to_x, like(e, to_weight, weight), like(e, to_bias, bias)


def like(e: Emit, grad: Maybe, parameter: Maybe) -> Maybe:
    """A gradient in the dtype of its parameter."""
    return grad if grad is None or parameter is None else e.convert(grad, parameter.tensor.dtype)


# Root mean square norm.


@decompose("_fused_rms_norm.default")
def rms_norm(e: Emit, x: Node, normalized_shape: Sequence[Int], weight: Maybe, eps: float | None) -> tuple[Node, Node]:
    p, spec = e.pointwise, x.tensor
    axes = tuple(range(spec.rank - len(normalized_shape), spec.rank))
    source = wide(e, x)
    small = torch.finfo(source.tensor.dtype).eps if eps is None else eps
    scale = p("rsqrt", p("add", mean_over(e, p("mul", source, source), axes, True), small))
    y = affine(e, p("mul", source, scale), wide_or_none(e, weight), None)
    return contiguous(e, y, spec.dtype), scale


@decompose("_fused_rms_norm_backward.default")
def rms_norm_backward(
    e: Emit, grad: Node, x: Node, normalized_shape: Sequence[Int], rstd: Node, weight: Maybe, output_mask: Mask
) -> tuple[Maybe, Maybe]:
    p, spec = e.pointwise, x.tensor
    inner = tuple(range(spec.rank - len(normalized_shape), spec.rank))
    outer = tuple(range(spec.rank - len(normalized_shape)))
    given, scale = wide(e, grad), wide(e, rstd)
    y = p("mul", wide(e, x), scale)
    inside = given if weight is None else p("mul", given, wide(e, weight))
    along = mean_over(e, p("mul", inside, y), inner, True)
    to_x = p("mul", p("sub", inside, p("mul", y, along)), scale)
    to_weight = reduce(e, "sum", p("mul", given, y), outer) if output_mask[1] and weight is not None else None
    return contiguous(e, to_x, spec.dtype) if output_mask[0] else None, like(e, to_weight, weight)


def _in_format_of(e: Emit, x: Node, y: Node) -> Node:
    """`y` in the dtype and memory format of `x`."""
    spec = x.tensor
    strides = format_strides(spec.sizes, suggested_format(e.oracle, spec.sizes, spec.strides))
    return relaid(e, e.convert(y, spec.dtype), strides)


# Group norm: x is (n, channels, ...); a group is a run of channels.


def _grouped(e: Emit, x: Node, n: Int, group: int, rest: Int) -> Node:
    flat = e.node("reshape" if not x.tensor.is_contiguous() else "view", x, sizes=(n, group, rest))
    return wide(e, flat)


def _column(e: Emit, x: Node, rank: int) -> Node:
    """A vector over channels (dimension 1) as a factor of a tensor of `rank`."""
    y = wide(e, x)
    for _ in range(rank - 2):
        y = e.node("unsqueeze", y, axis=y.tensor.rank)
    return y


def _per_channel(e: Emit, x: Maybe, rank: int) -> Maybe:
    return None if x is None else _column(e, x, rank)


@decompose("native_group_norm.default")
def group_norm(
    e: Emit, x: Node, weight: Maybe, bias: Maybe, N: Int, C: Int, HxW: Int, group: int, eps: float
) -> tuple[Node, Node, Node]:
    spec = x.tensor
    require_parameters(e, "group_norm", spec, C, weight, bias)
    if _has_channels_last(e, spec):
        full, middle, scale = _normalise_channels(
            e, wide(e, x), wide_or_none(e, weight), wide_or_none(e, bias), group, eps
        )
    else:
        y, middle, scale = standardised(e, _grouped(e, x, N, group, C // group * HxW), (2,), eps)
        full = e.node("view", y, sizes=spec.sizes)
        full = affine(e, full, _per_channel(e, weight, spec.rank), _per_channel(e, bias, spec.rank))
    made = _in_format_of(e, x, full)
    kept = _saved_dtype(x, weight, bias)
    flat = [e.convert(e.node("squeeze", x, axes=(2,)), kept) for x in (middle, scale)]
    return made, flat[0], flat[1]


@decompose("native_group_norm_backward.default")
def group_norm_backward(
    e: Emit, grad: Node, x: Node, mean: Node, rstd: Node, weight: Maybe, N: Int, C: Int, HxW: Int, group: int,
    output_mask: Mask,
) -> tuple[Maybe, Maybe, Maybe]:  # fmt: skip
    p, spec, rest = e.pointwise, x.tensor, C // group * HxW
    middle, scale = (e.node("unsqueeze", wide(e, x), axis=2) for x in (mean, rstd))
    given = wide(e, grad)
    factor = _per_channel(e, weight, spec.rank)
    inside = given if factor is None else p("mul", given, factor)
    to_x = None
    if _has_channels_last(e, spec):
        middle, scale = (_of_channels(e, statistic, C, spec.rank) for statistic in (middle, scale))
        full = p("mul", p("sub", wide(e, x), middle), scale)
        if output_mask[0]:
            projected = _project(e, inside, full, scale, lambda part: _mean_of_groups(e, part, group))
            to_x = _in_format_of(e, x, projected)
    else:
        y = p("mul", p("sub", _grouped(e, x, N, group, rest), middle), scale)
        full = e.node("view", y, sizes=spec.sizes)
        if output_mask[0]:
            flat = _project(e, _grouped(e, inside, N, group, rest), y, scale, _mean_along(e, (2,)))
            to_x = contiguous(e, e.node("view", flat, sizes=spec.sizes), spec.dtype)
    axes = (0, *range(2, spec.rank))
    to_weight = reduce(e, "sum", p("mul", given, full), axes) if output_mask[1] else None
    to_bias = reduce(e, "sum", given, axes) if output_mask[2] else None
    return to_x, like(e, to_weight, weight), like(e, to_bias, weight)


# The same where channels are neighbours in memory. Channels of one group alone fill no vector, all of them do: sums are
# over the points of a channel first, and what each group gives is spread to its channels before it meets the points.


def _has_channels_last(e: Emit, x: TensorSpec) -> bool:
    return suggested_format(e.oracle, x.sizes, x.strides) != "contiguous"


def _normalise_channels(
    e: Emit, x: Node, weight: Maybe, bias: Maybe, group: int, eps: float
) -> tuple[Node, Node, Node]:
    """The result as x*a + c, as eager's kernel; mean and inverse standard deviation (n, group, 1).

    The variance of a group is the mean of those of its channels, and the variance of their means.
    """
    p, rank, channels = e.pointwise, x.tensor.rank, x.tensor.sizes[1]
    spread, middle, _ = variance(e, x, tuple(range(2, rank)), 0)
    between, of_group, _ = variance(e, _in_groups(e, middle, group), (2,), 0)
    total = p("add", mean_over(e, _in_groups(e, spread, group), (2,), True), between)
    factor = p("rsqrt", p("add", _of_channels(e, total, channels, rank), eps))
    if weight is not None:
        factor = p("mul", factor, _column(e, weight, rank))
    lift = p("mul", p("neg", _of_channels(e, of_group, channels, rank)), factor)
    if bias is not None:
        lift = p("add", lift, _column(e, bias, rank))
    return p("fma", x, factor, lift), of_group, p("rsqrt", p("add", total, eps))


def _in_groups(e: Emit, x: Node, group: int) -> Node:
    """Statistics of channels, (n, channels, 1, ...), as (n, group, channels of one)."""
    n, channels, *_ = x.tensor.sizes
    return e.node("view", x, sizes=(n, group, channels // group))


def _of_channels(e: Emit, x: Node, channels: Int, rank: int) -> Node:
    """Statistics of groups, (n, group, 1), as those of their channels, (n, channels, 1, ...)."""
    n, group, _ = x.tensor.sizes
    return e.node(
        "reshape", e.node("expand", x, sizes=(n, group, channels // group)), sizes=(n, channels, *[1] * (rank - 2))
    )


def _mean_of_groups(e: Emit, x: Node, group: int) -> Node:
    """That of each group, at its channels."""
    spec = x.tensor
    means = _in_groups(e, mean_over(e, x, tuple(range(2, spec.rank)), True), group)
    return _of_channels(e, mean_over(e, means, (2,), True), spec.sizes[1], spec.rank)


# Batch norm: statistics over all dimensions except channels.


def _channel_axes(x: TensorSpec) -> tuple[int, ...]:
    return (0, *range(2, x.rank))


def _empty(e: Emit, x: Node, dtype: torch.dtype) -> Node:
    return e.node("empty", sizes=(0,), strides=(1,), dtype=dtype, device=x.tensor.device)


def _normalise(e: Emit, x: Node, middle: Node, scale: Node, weight: Maybe, bias: Maybe) -> Node:
    """(x - mean) * (scale * weight) + bias, over channels.

    On the CPU bit for bit as eager's kernel: x*a + c with a = scale*weight and c = bias - mean*a, each product-sum
    rounded once. Later ops may depend on the last bit (relu decides which gradients are zero), so a more exact result
    would be further from float64 than eager's as often as nearer.
    """
    p, rank, kind = e.pointwise, x.tensor.rank, middle.tensor.dtype
    factor = scale if weight is None else p("mul", scale, e.convert(weight, kind))
    source, shift = e.convert(x, kind), None if bias is None else e.convert(bias, kind)
    if x.tensor.device.type == "cpu":
        lift = p("mul", p("neg", middle), factor) if shift is None else p("fma", p("neg", middle), factor, shift)
        return _in_format_of(e, x, p("fma", source, _column(e, factor, rank), _column(e, lift, rank)))
    y = p("mul", p("sub", source, _column(e, middle, rank)), _column(e, factor, rank))
    return _in_format_of(e, x, y if shift is None else p("add", y, _column(e, shift, rank)))


def _exact_dtype(x: TensorSpec) -> torch.dtype:
    """On the CPU eager sums batch statistics and their gradient in float64, as later differences cancel."""
    return torch.float64 if x.device.type == "cpu" else OPMATH.get(x.dtype, x.dtype)


def _batch_statistics(e: Emit, x: Node, eps: float) -> tuple[Node, Node, Node]:
    """The mean, the sum of squared deviations, and the inverse standard deviation, rounded where eager rounds them."""
    p, axes, exact = e.pointwise, _channel_axes(x.tensor), _exact_dtype(x.tensor)
    source = wide(e, x)
    kept = source.tensor.dtype
    middle = e.convert(mean_over(e, e.convert(source, exact), axes), kept)
    away = p("sub", source, _column(e, middle, x.tensor.rank))
    total = e.convert(reduce(e, "sum", e.convert(p("mul", away, away), exact), axes), kept)
    spread = e.convert(divided(e, total, count(x.tensor, axes)), exact)
    return middle, total, e.convert(p("rsqrt", p("add", spread, eps)), kept)


def batch_norm_training(e: Emit, x: Node, weight: Maybe, bias: Maybe, eps: float) -> tuple[Node, Node, Node, Node]:
    """The result, the mean, the inverse standard deviation, and the unbiased variance."""
    middle, total, scale = _batch_statistics(e, x, eps)
    number = count(x.tensor, _channel_axes(x.tensor))
    less: Int = number - 1 if isinstance(number, Expr) else max(number - 1, 1)
    return _normalise(e, x, middle, scale, weight, bias), middle, scale, divided(e, total, less)


def _moved(e: Emit, running: Node, new: Node, momentum: float) -> Node:
    """The running statistic after the batch, in its own dtype."""
    p, old = e.pointwise, wide(e, running)
    fresh = p("mul", e.convert(new, old.tensor.dtype), momentum)
    return e.convert(p("add", fresh, p("mul", old, 1 - momentum)), running.tensor.dtype)


@mutation("native_batch_norm.default", "_native_batch_norm_legit.default")
def batch_norm(
    e: Emit, x: Node, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe, training: bool,
    momentum: float, eps: float,
) -> Effects:  # fmt: skip
    require_parameters(e, "batch_norm", x.tensor, x.tensor.sizes[1], weight, bias, running_mean, running_var)
    kept = _saved_dtype(x, weight, bias, running_mean, running_var)
    if not training:
        assert running_mean is not None and running_var is not None
        scale = e.pointwise("rsqrt", e.pointwise("add", wide(e, running_var), eps))
        made = _normalise(e, x, wide(e, running_mean), scale, weight, bias)
        return Effects((made, _empty(e, x, kept), _empty(e, x, kept)))
    made, middle, scale, unbiased = batch_norm_training(e, x, weight, bias, eps)
    writes: dict[int | str, Node] = {}
    if running_mean is not None:
        writes[3] = _moved(e, running_mean, middle, momentum)
    if running_var is not None:
        writes[4] = _moved(e, running_var, unbiased, momentum)
    return Effects((made, e.convert(middle, kept), e.convert(scale, kept)), writes)


@mutation("_batch_norm_with_update.default")
def batch_norm_with_update(
    e: Emit, x: Node, weight: Maybe, bias: Maybe, running_mean: Node, running_var: Node, momentum: float, eps: float
) -> Effects:
    return cudnn_batch_norm(e, x, weight, bias, running_mean, running_var, True, momentum, eps)


@decompose("_batch_norm_no_update.default")
def batch_norm_no_update(
    e: Emit, x: Node, weight: Maybe, bias: Maybe, running_mean: Node, running_var: Node, momentum: float, eps: float
) -> Results:
    return cudnn_batch_norm(e, x, weight, bias, running_mean, running_var, False, momentum, eps).results


@decompose("batch_norm_backward.default")
def batch_norm_backward_any(
    e: Emit, grad: Node, x: Node, weight: Node, running_mean: Maybe, running_var: Maybe, save_mean: Maybe,
    save_var: Maybe, update: bool, eps: float, output_mask: Mask, reserve: Node,
) -> tuple[Maybe, Maybe, Maybe]:  # fmt: skip
    return batch_norm_backward(
        e, grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@decompose("_native_batch_norm_legit.no_stats")
def batch_norm_without(
    e: Emit, x: Node, weight: Maybe, bias: Maybe, training: bool, momentum: float, eps: float
) -> Results:
    return batch_norm(e, x, weight, bias, None, None, True, momentum, eps).results


@decompose("_native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    e: Emit, x: Node, weight: Maybe, bias: Maybe, running_mean: Node, running_var: Node, momentum: float, eps: float
) -> Results:
    return batch_norm(e, x, weight, bias, running_mean, running_var, False, momentum, eps).results


@mutation("cudnn_batch_norm.default")
def cudnn_batch_norm(
    e: Emit, x: Node, weight: Maybe, bias: Maybe, running_mean: Maybe, running_var: Maybe, training: bool,
    exponential_average_factor: float, epsilon: float,
) -> Effects:  # fmt: skip
    effects = batch_norm(e, x, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon)
    assert isinstance(effects.results, tuple)
    return Effects((*effects.results, _empty(e, x, torch.uint8)), effects.writes)


@decompose("native_batch_norm_backward.default")
def batch_norm_backward(
    e: Emit, grad: Node, x: Node, weight: Maybe, running_mean: Maybe, running_var: Maybe, save_mean: Maybe,
    save_invstd: Maybe, train: bool, eps: float, output_mask: Mask,
) -> tuple[Maybe, Maybe, Maybe]:  # fmt: skip
    p, rank, axes, kind = e.pointwise, x.tensor.rank, _channel_axes(x.tensor), _exact_dtype(x.tensor)
    mean, spread = (save_mean, save_invstd) if train else (running_mean, running_var)
    assert mean is not None and spread is not None
    middle, scale = e.convert(mean, kind), e.convert(spread, kind)
    if not train:
        scale = p("rsqrt", p("add", scale, eps))
    given, away = e.convert(grad, kind), p("sub", e.convert(x, kind), _column(e, middle, rank))
    along, total = reduce(e, "sum", p("mul", given, away), axes), reduce(e, "sum", given, axes)
    to_x = None
    if output_mask[0]:
        inside = given
        if train:
            number = product([x.tensor.sizes[axis] for axis in axes])
            slope = divided(e, p("mul", along, p("mul", scale, scale)), number)
            inside = p("sub", inside, _column(e, divided(e, total, number), rank))
            inside = p("sub", inside, p("mul", away, _column(e, slope, rank)))
        factor = scale if weight is None else p("mul", scale, e.convert(weight, kind))
        to_x = _in_format_of(e, x, p("mul", inside, _column(e, factor, rank)))
    kept = OPMATH.get(x.tensor.dtype, x.tensor.dtype) if weight is None else weight.tensor.dtype
    to_weight = e.convert(p("mul", along, scale), kept) if output_mask[1] else None
    to_bias = e.convert(total, kept) if output_mask[2] else None
    return to_x, to_weight, to_bias


@decompose("cudnn_batch_norm_backward.default")
def cudnn_batch_norm_backward(
    e: Emit, x: Node, grad: Node, weight: Node, running_mean: Maybe, running_var: Maybe, save_mean: Maybe,
    save_var: Maybe, epsilon: float, reserveSpace: Node,
) -> tuple[Maybe, Maybe, Maybe]:  # fmt: skip
    return batch_norm_backward(
        e, grad, x, weight, running_mean, running_var, save_mean, save_var, True, epsilon, (True, True, True)
    )
