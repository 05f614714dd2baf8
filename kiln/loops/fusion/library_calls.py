"""A loop that is nothing but one function for which ATen has wider vectors than our C++ is left to ATen.

    b0: f64[1000] = pointwise (i0: 1000): exp(load a0[i0])      =>      b0 = extern aten.exp.default(a0)

C++ leaves functions of float64, and a few of float32, to libm number by number; and its vectors have as many lanes as
there are float32 in a register, so that numbers of 8 bits fill a quarter of one. Fused with other work such a loop
stays a kernel: it saves a pass over memory, and the call would save less the more there is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kiln.graph.ir.single_call import call_of
from kiln.loops.body.body import Compute, Load
from kiln.loops.body.indexing import points
from kiln.loops.fusion.group import Group
from kiln.loops.program.nodes import Buffer, BufferArg, Extern, Pointwise
from kiln.support.target import Target
from kiln.tensor.size_hint import large_size_hint

BY_NUMBER: Mapping[torch.dtype, frozenset[str]] = {
    torch.float32: frozenset({"lgamma", "digamma"}),
    torch.float64: frozenset({
        "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma", "digamma",
        "pow", "hypot", "fmod", "remainder", "floor_div", "nextafter", "sqrt",
    }),
}  # fmt: skip
"""Functions without vectors in C++, by the dtype that they are computed in (a test compares it with the prelude).
The root is not: it is one slow instruction, in place of which ATen's library multiplies."""

_LOGIC = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"})
_BYTES = _LOGIC | {"add", "sub", "mul", "maximum", "minimum", "neg", "abs"}
NARROW: Mapping[torch.dtype, frozenset[str]] = {
    torch.bool: _LOGIC | {"logical_not"}, torch.uint8: _BYTES, torch.int8: _BYTES,
}  # fmt: skip
"""Functions of single bytes of which ATen takes a register full."""

WORTH_A_CALL, NARROW_WORTH_A_CALL = 1 << 8, 1 << 16
"""Numbering from which on a call costs less than it saves: about a microsecond against 5 and 0.05 nanoseconds each."""


def library_call(group: Group, buffers: Mapping[str, Buffer], target: Target) -> Extern | None:
    """The call of ATen that computes `group`, if it is one function of whole tensors better left to it."""
    if target.is_gpu or len(group.members) != 1 or group.members[0].partial is not None:
        return None
    node = group.members[0].node
    if not isinstance(node, Pointwise) or node.out.base is not None:
        return None
    args = _whole_arguments(node, buffers)
    op = node.body.ops[node.body.results[0]]
    if args is None or not isinstance(op, Compute) or not _is_better(op, large_size_hint(points(node.axes))):
        return None
    call = call_of(op.op, node.out.spec, args, {})
    if call is None or call.args != args:
        return None
    return Extern((node.out,), call.target, call.args, call.kwargs, origin=node.origin)


def _is_better(op: Compute, size: int) -> bool:
    by_number = op.op.name in BY_NUMBER.get(op.dtype, ()) and size >= WORTH_A_CALL
    return by_number or (op.op.name in NARROW.get(op.dtype, ()) and size >= NARROW_WORTH_A_CALL)


def _whole_arguments(node: Pointwise, buffers: Mapping[str, Buffer]) -> tuple[BufferArg, ...] | None:
    """The buffers that the one op of a body reads point by point, in the layout and dtype of its result."""
    spec, ops = node.out.spec, node.body.ops
    op = ops[node.body.results[0]]
    if not isinstance(op, Compute) or op.dtype != spec.dtype:
        return None
    here = tuple(axis.symbol for axis in node.axes)
    args = []
    for place in op.operands:
        load = ops[place]
        if not isinstance(load, Load) or load.mask is not None or load.index != here:
            return None
        given = buffers[load.buffer].spec
        if (given.dtype, given.sizes, given.strides) != (spec.dtype, spec.sizes, spec.strides):
            return None
        args.append(BufferArg(load.buffer))
    return tuple(args)
