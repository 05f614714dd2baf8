"""Losses and their gradients.

aten.nll_loss_forward(x, t, w, mean, -100)    =>    gather, weight, sum, divide
aten.nll_loss_backward(...)                   =>    where(column == target, -grad*w, 0): no scatter
"""

from __future__ import annotations

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.activations import number_like, one_minus, zero_where
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.creation import iota, packed, relaid
from kiln.graph.ops.data_movement import not_negative
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.pointwise import require_chances
from kiln.graph.ops.promotion import OPMATH, elementwise, promoted, promoting, widened
from kiln.graph.ops.reductions import mean_over, reduce
from kiln.graph.ops.registry import decompose
from kiln.graph.ops.sizes import matching_sizes
from kiln.tensor.spec import TensorSpec

NONE, MEAN, SUM = 0, 1, 2
"""Values of the argument `reduction`."""

Maybe = Node | None


def require_reduction(reduction: int) -> None:
    if reduction not in (NONE, MEAN, SUM):
        raise UnsupportedOp(op="a loss", reason=f"its result for the reduction {reduction} depends on its kernel")


def require_cast(loss: Node, like: TensorSpec) -> None:
    if not torch.can_cast(loss.tensor.dtype, like.dtype):
        raise RuntimeError(f"result type {loss.tensor.dtype} can't be cast to the desired output type {like.dtype}")


def require_result(e: Emit, loss: Node, like: TensorSpec) -> None:
    """Eager computes a loss in place: terms may not broadcast it."""
    require_cast(loss, like)
    if not matching_sizes(e, loss.tensor.sizes, like.sizes):
        raise RuntimeError(f"output with shape {like.sizes} doesn't match the broadcast shape {loss.tensor.sizes}")


def _rounded(e: Emit, loss: Node, reduction: int, dtype: torch.dtype) -> Node:
    """The reduced loss in the dtype of the result."""
    require_reduction(reduction)
    if reduction != NONE:
        axes = tuple(range(loss.tensor.rank))
        loss = mean_over(e, loss, axes) if reduction == MEAN else reduce(e, "sum", loss, axes)
    return e.convert(loss, dtype)


def _pair(e: Emit, x: Node, y: Node) -> tuple[Node, Node, torch.dtype]:
    """Both in the dtype of eager's computation, and the dtype of the result."""
    left, right = promoted(e, x, y)
    dtype = left.tensor.dtype
    wide = OPMATH.get(dtype, dtype)
    return e.convert(left, wide), e.convert(right, wide), dtype


def _share(e: Emit, grad: Node, reduction: int, x: Node) -> Node:
    """The gradient of each element."""
    if reduction != MEAN:
        return grad
    return e.pointwise("div", grad, e.number(x.tensor.numel(), grad.tensor.dtype, grad.tensor.device))


# Distances.


@decompose("mse_loss.default")
def mse_loss(e: Emit, x: Node, y: Node, reduction: int = MEAN) -> Node:
    left, right, dtype = _pair(e, x, y)
    away = e.pointwise("sub", left, right)
    return _rounded(e, e.pointwise("mul", away, away), reduction, dtype)


@decompose("mse_loss_backward.default")
@promoting(3)
@elementwise
def mse_loss_backward(e: Emit, grad: Node, x: Node, y: Node, reduction: int) -> Node:
    p = e.pointwise
    return p("mul", p("mul", p("sub", x, y), 2), _share(e, grad, reduction, x))


@decompose("smooth_l1_loss.default")
def smooth_l1_loss(e: Emit, x: Node, y: Node, reduction: int = MEAN, beta: float = 1.0) -> Node:
    if isinstance(beta, int | float) and not beta >= 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    p, (left, right, dtype) = e.pointwise, _pair(e, x, y)
    away = p("abs", p("sub", left, right))
    if beta == 0:
        return _rounded(e, away, reduction, dtype)
    near = p("div", p("mul", p("mul", away, away), 0.5), beta)
    return _rounded(e, p("where", p("lt", away, beta), near, p("sub", away, 0.5 * beta)), reduction, dtype)


@decompose("smooth_l1_loss_backward.default")
@promoting(3)
@elementwise
def smooth_l1_loss_backward(e: Emit, grad: Node, x: Node, y: Node, reduction: int, beta: float) -> Node:
    p = e.pointwise
    away, share = p("sub", x, y), _share(e, grad, reduction, x)
    far = p("mul", p("sign", away), share)
    if beta == 0:
        return far
    near = p("div", p("mul", away, share), beta)
    return p("where", p("lt", p("abs", away), beta), near, far)


@decompose("huber_loss.default")
def huber_loss(e: Emit, x: Node, y: Node, reduction: int = MEAN, delta: float = 1.0) -> Node:
    if isinstance(delta, int | float) and not delta > 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    p, (left, right, _) = e.pointwise, _pair(e, x, y)
    away = p("abs", p("sub", left, right))
    near, far = p("mul", p("mul", away, away), 0.5), p("mul", p("sub", away, 0.5 * delta), delta)
    require_cast(near, x.tensor)
    return _rounded(e, p("where", p("le", away, delta), near, far), reduction, x.tensor.dtype)


@decompose("huber_loss_backward.default")
@elementwise
def huber_loss_backward(e: Emit, grad: Node, x: Node, y: Node, reduction: int, delta: float) -> Node:
    p = e.pointwise
    away, share = p("sub", x, y), _share(e, grad, reduction, x)
    far = p("mul", p("mul", p("sign", away), share), delta)
    return p("where", p("le", p("abs", away), delta), p("mul", away, share), far)


# Binary cross entropy.


def _weighted(e: Emit, loss: Node, weight: Maybe) -> Node:
    if weight is None:
        return loss
    require_cast(weight, loss.tensor)
    return e.pointwise("mul", loss, e.convert(weight, loss.tensor.dtype))


@decompose("binary_cross_entropy.default")
def binary_cross_entropy(e: Emit, x: Node, y: Node, weight: Maybe = None, reduction: int = MEAN) -> Node:
    """Logarithms are at least -100, as in eager."""
    if x.tensor.dtype is not y.tensor.dtype:
        raise RuntimeError(f"Found dtype {y.tensor.dtype} but expected {x.tensor.dtype}")
    if not matching_sizes(e, x.tensor.sizes, y.tensor.sizes):
        raise UnsupportedOp(op="aten.binary_cross_entropy.default", reason="input and target differ in sizes")
    p, (left, right, dtype) = e.pointwise, _pair(e, x, y)
    require_chances(e, left, "binary_cross_entropy: all elements of input should be between 0 and 1")
    require_chances(e, right, "binary_cross_entropy: all elements of target should be between 0 and 1")
    hit = p("maximum", p("log", left), -100)
    miss = p("maximum", p("log1p", p("neg", left)), -100)
    loss = _weighted(e, p("sub", p("mul", p("sub", right, 1), miss), p("mul", right, hit)), weight)
    require_result(e, loss, x.tensor)
    require_reduction(reduction)
    if reduction == NONE:
        return relaid(e, e.convert(loss, dtype), e.preserved_strides(x.tensor))
    return _rounded(e, loss, reduction, dtype)


@decompose("binary_cross_entropy_backward.default")
@widened
def binary_cross_entropy_backward(
    e: Emit, grad: Node, x: Node, y: Node, weight: Maybe = None, reduction: int = MEAN
) -> Node:
    p = e.pointwise
    room = p("maximum", p("mul", one_minus(e, x), x), 1e-12)
    slope = p("div", p("mul", grad, p("sub", x, y)), room)
    return relaid(e, _share(e, _weighted(e, slope, weight), reduction, x), e.preserved_strides(x.tensor))


@decompose("binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    e: Emit, x: Node, y: Node, weight: Maybe = None, pos_weight: Maybe = None, reduction: int = MEAN
) -> Node:
    """The loss has sizes and dtype of `1 - target`, in which eager computes it."""
    dtype = y.tensor.dtype
    if not x.tensor.dtype.is_floating_point:
        raise NotImplementedError(f'"log_sigmoid" not implemented for {x.tensor.dtype}')
    if not dtype.is_floating_point:
        raise RuntimeError(f"result type {x.tensor.dtype} can't be cast to the desired output type {dtype}")
    terms = [term for term in (x, y, weight, pos_weight) if term is not None]
    mixed = any(term.tensor.dtype is not dtype for term in terms)
    own, target = (x, y) if mixed else _pair(e, x, y)[:2]
    tail = minus_log_sigmoid(e, own)
    if pos_weight is not None:
        extra = _computed(e, "mul", _computed(e, "sub", pos_weight, one(e, pos_weight)), target)
        tail = _into(e, "mul", tail, _computed(e, "add", extra, one(e, extra)))
    loss = _into(e, "add", _into(e, "mul", one_minus(e, target), own), tail)
    if weight is not None:
        loss = _into(e, "mul", loss, weight)
    return _rounded(e, e.convert(loss, OPMATH.get(dtype, dtype)), reduction, dtype)


def one(e: Emit, like: Node) -> Node:
    return number_like(e, 1, like)


def minus_log_sigmoid(e: Emit, x: Node) -> Node:
    """In the dtype of `x`."""
    p, dtype = e.pointwise, x.tensor.dtype
    wide = e.convert(x, OPMATH.get(dtype, dtype))
    return e.convert(p("sub", p("log1p", p("exp", p("neg", p("abs", wide)))), p("minimum", wide, 0)), dtype)


def _computed(e: Emit, name: str, x: Node, y: Node) -> Node:
    """`x <name> y` in their common dtype."""
    return e.pointwise(name, *promoted(e, x, y))


def _into(e: Emit, name: str, x: Node, y: Node) -> Node:
    """`x <name> y` as eager computes it in place: in sizes and dtype of `x`."""
    made = _computed(e, name, x, y)
    require_result(e, made, x.tensor)
    return e.convert(made, x.tensor.dtype)


@decompose("soft_margin_loss.default")
def soft_margin_loss(e: Emit, x: Node, y: Node, reduction: int = MEAN) -> Node:
    p, (left, right, _) = e.pointwise, _pair(e, x, y)
    require_result(e, p("mul", left, right), x.tensor)
    return _rounded(e, p("log1p", p("exp", p("neg", p("mul", left, right)))), reduction, x.tensor.dtype)


@decompose("soft_margin_loss_backward.default")
@promoting(3)
@elementwise
def soft_margin_loss_backward(e: Emit, grad: Node, x: Node, y: Node, reduction: int) -> Node:
    p = e.pointwise
    slope = p("neg", p("mul", y, p("sigmoid", p("neg", p("mul", x, y)))))
    return p("mul", slope, _share(e, grad, reduction, x))


# Negative log likelihood: x is (classes) or (n, classes, ...), the target has no class dimension.


def _class_axis(x: Node) -> int:
    return min(1, x.tensor.rank - 1)


def _target(e: Emit, target: Node, ignore_index: int, axis: int) -> tuple[Node, Node]:
    """The target with a class dimension, 0 where it is ignored; and where it is not."""
    spread = e.node("unsqueeze", e.convert(target, torch.int64), axis=axis)
    counts = e.pointwise("ne", spread, ignore_index)
    return not_negative(e, e.pointwise("where", counts, spread, number_like(e, 0, spread))), counts


def _class_weights(e: Emit, safe: Node, counts: Node, weight: Maybe, like: Node) -> Node:
    """The weight of each target's class, 0 where it is ignored."""
    if weight is None:
        return e.convert(counts, like.tensor.dtype)
    taken = e.node("index", e.convert(weight, like.tensor.dtype), safe, axes=(0,))
    return zero_where(e, e.pointwise("logical_not", counts), taken)


def require_classes(e: Emit, x: Node, target: Node, weight: Maybe) -> None:
    """A target for each place, and a weight for each class."""
    spec, axis = x.tensor, _class_axis(x)
    if spec.rank == target.tensor.rank == 1:
        raise UnsupportedOp(op="nll_loss", reason="a target of rank 1 for an input without a batch")
    if spec.rank not in (1, 2, 4) or target.tensor.rank != spec.rank - 1:
        raise RuntimeError(f"nll_loss does not take input of sizes {spec.sizes} and target of {target.tensor.sizes}")
    if not spec.dtype.is_floating_point:
        raise NotImplementedError(f'"nll_loss" not implemented for {spec.dtype}')
    if target.tensor.dtype is not torch.int64 and (target.tensor.dtype is not torch.uint8 or spec.rank == 4):
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {target.tensor.dtype}")
    if not matching_sizes(e, target.tensor.sizes, (*spec.sizes[:axis], *spec.sizes[axis + 1 :])):
        raise RuntimeError(f"nll_loss: size mismatch, got input {spec.sizes}, target {target.tensor.sizes}")
    if weight is not None and spec.rank == 4 and weight.tensor.rank != 1:
        raise UnsupportedOp(op="nll_loss2d", reason="a weight whose rank is not 1")
    if weight is not None and not matching_sizes(e, weight.tensor.sizes, (spec.sizes[axis],)):
        raise RuntimeError(
            f"weight tensor should be defined either for all {spec.sizes[axis]} classes or no classes but got weight"
            f" tensor of shape: {list(weight.tensor.sizes)}"
        )
    if weight is not None and weight.tensor.dtype is not spec.dtype:
        raise RuntimeError(f"expected scalar type {spec.dtype} but found {weight.tensor.dtype}")


@decompose("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(e: Emit, x: Node, target: Node, weight: Maybe, reduction: int, ignore_index: int) -> tuple[Node, Node]:
    require_classes(e, x, target, weight)
    require_reduction(reduction)
    p, axis, dtype = e.pointwise, _class_axis(x), x.tensor.dtype
    wide = e.convert(x, OPMATH.get(dtype, dtype))
    safe, counts = _target(e, target, ignore_index, axis)
    factor = _class_weights(e, safe, counts, weight, wide)
    picked = p("neg", e.node("gather", wide, safe, axis=axis))
    loss = p("where", counts, p("mul", picked, factor), number_like(e, 0, picked))
    axes = tuple(range(loss.tensor.rank))
    if reduction == NONE:
        made = packed(e, e.convert(e.node("squeeze", loss, axes=(axis,)), dtype))
        alone = not made.tensor.rank
        return made, e.node("squeeze", factor, axes=(0,)) if alone else e.number(0, dtype, x.tensor.device)
    total, weights = reduce(e, "sum", loss, axes), reduce(e, "sum", factor, axes)
    result = p("div", total, weights) if reduction == MEAN else total
    return e.convert(result, dtype), e.convert(weights, dtype)


@decompose("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(
    e: Emit, grad: Node, x: Node, target: Node, weight: Maybe, reduction: int, ignore_index: int, total_weight: Node
) -> Node:
    p, axis, dtype = e.pointwise, _class_axis(x), x.tensor.dtype
    wide = OPMATH.get(dtype, dtype)
    given = e.convert(grad, wide)
    safe, counts = _target(e, target, ignore_index, axis)
    factor = _class_weights(e, safe, counts, weight, given)
    if reduction == MEAN:
        given = p("div", given, e.convert(total_weight, wide))
    elif reduction == NONE:
        given = e.node("unsqueeze", given, axis=axis)
    classes = iota(e, x.tensor.sizes[axis], torch.int64, x.tensor.device)
    for _ in range(x.tensor.rank - axis - 1):
        classes = e.node("unsqueeze", classes, axis=classes.tensor.rank)
    hit = p("bitwise_and", p("eq", classes, safe), counts)
    made = p("where", hit, p("neg", p("mul", given, factor)), number_like(e, 0, given))
    return e.convert(made, dtype)
