"""Type promotion: the dtype in which an op computes, for nodes and numbers.

    add(f32[4], 2)          f32: a tensor wins over a number of its category
    add(i64[4], 2.5)        f32: a higher category wins, in the default dtype
    add(f32[4], f64[])      f32: a tensor with dimensions wins over one of rank 0
    sqrt(i64[4])            f32

Source: the documentation of `torch.result_type`, and experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar, cast

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Emit, Operand
from kiln.graph.prims.meta import pointwise_spec
from kiln.symbolic.values import Real
from kiln.tensor.spec import CPU, TensorSpec

R = TypeVar("R", bound=Callable[..., object])
OPMATH = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""The dtype in which eager's kernels compute for reduced precision."""


def number_dtype(value: object) -> torch.dtype:
    """The dtype that represents the category of a Python number."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, float | Real):
        return torch.get_default_dtype()
    if isinstance(value, complex):
        return torch.complex128 if torch.get_default_dtype() is torch.float64 else torch.complex64
    return torch.int64


def result_dtype(operands: Sequence[Operand]) -> torch.dtype:
    """The common dtype of tensors and numbers."""
    first = operands[0]
    if type(first) is Node:
        dtype = first.tensor.dtype
        if dtype.is_floating_point and all(_agrees(operand, dtype) for operand in operands[1:]):
            return dtype
    ranked: list[torch.dtype | None] = [None, None, None]  # with dimensions, without, numbers
    for operand in operands:
        rank = 2 if not isinstance(operand, Node) else 0 if operand.tensor.rank else 1
        dtype = operand.tensor.dtype if isinstance(operand, Node) else number_dtype(operand)
        other = ranked[rank]
        ranked[rank] = dtype if other is None else torch.promote_types(other, dtype)
    result = _combine(ranked[0], _combine(ranked[1], ranked[2]))
    assert result is not None
    return result


def _agrees(operand: Operand, dtype: torch.dtype) -> bool:
    """Whether this operand keeps a floating `dtype` of the first tensor, for all ranks."""
    if type(operand) is Node:
        return operand.tensor.dtype is dtype
    return not isinstance(operand, complex)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """The dtype of two priorities: the lower one matters only if it is of a higher category."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def float_dtype(dtype: torch.dtype) -> torch.dtype:
    """The floating dtype for `dtype`."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def promoted(e: Emit, *operands: Operand, floating: bool = False) -> tuple[Node, ...]:
    """All operands in their common dtype (with `floating`, a floating one), numbers as constants."""
    dtype = result_dtype(operands)
    if floating:
        dtype = float_dtype(dtype)
    devices = [operand.tensor.device for operand in operands if isinstance(operand, Node)]
    device = next((device for device in devices if device != CPU), CPU)
    return tuple([e.convert(x, dtype) if isinstance(x, Node) else e.number(x, dtype, device) for x in operands])


def promoting(number: int, *, floating: bool = False) -> Callable[[R], R]:
    """Decorator: the rule receives its first `number` operands `promoted`."""

    def decorate(rule: R) -> R:
        @wraps(rule)
        def run(e: Emit, *args: Operand, **kwargs: object) -> object:
            return rule(e, *promoted(e, *args[:number], floating=floating), *args[number:], **kwargs)

        return cast(R, run)

    return decorate


def widened(rule: R) -> R:
    """Decorator: compute in float32 where the first tensor has reduced precision, and round each result once."""

    @wraps(rule)
    def run(e: Emit, *args: object, **kwargs: object) -> object:
        reduced = next(arg.tensor.dtype for arg in args if type(arg) is Node)
        if reduced not in OPMATH:
            return rule(e, *args, **kwargs)
        result = rule(e, *[_to_opmath(e, arg, reduced) for arg in args], **kwargs)
        if isinstance(result, tuple):
            return tuple([_round_to(e, part, reduced) for part in result])
        return _round_to(e, result, reduced)

    return cast(R, run)


def elementwise(rule: R) -> R:
    """Decorator for what is a single loop in eager: `widened`, and laid out as the result of that loop."""
    wide = widened(rule)

    @wraps(rule)
    def run(e: Emit, *args: object, **kwargs: object) -> object:
        result = wide(e, *args, **kwargs)
        specs = [arg.tensor for arg in args if type(arg) is Node]
        if len(specs) < 2 or all(spec.strides == specs[0].strides for spec in specs):
            return result
        if isinstance(result, tuple):
            return tuple([_as_iterated(e, part, specs) for part in result])
        return _as_iterated(e, result, specs)

    return cast(R, run)


def _as_iterated(e: Emit, x: object, specs: list[TensorSpec]) -> Node:
    assert isinstance(x, Node)
    strides = pointwise_spec(e.oracle, specs, x.tensor.dtype).strides
    return x if x.tensor.strides == strides else e.node("clone", x, strides=strides)


def _to_opmath(e: Emit, value: object, reduced: torch.dtype) -> object:
    return e.convert(value, OPMATH[reduced]) if isinstance(value, Node) and value.tensor.dtype is reduced else value


def _round_to(e: Emit, value: object, reduced: torch.dtype) -> object:
    return e.convert(value, reduced) if isinstance(value, Node) and value.tensor.dtype is OPMATH[reduced] else value
