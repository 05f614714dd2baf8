"""Library calls: a loop that is just one function for which ATen has wider vectors than our C++ is left to ATen.

    b0: f64[1000] = pointwise (i0: 1000): exp(load a0[i0])      =>      b0 = extern aten.exp.default(a0)

Our C++ computes many functions of float64, and a few of float32, element by element with libm; and its vectors have
as many lanes as a register holds float32, of which bytes fill a quarter. Fused with other work such a loop stays in the
kernel: that saves a pass over memory.
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

SCALAR: Mapping[torch.dtype, frozenset[str]] = {
    torch.float32: frozenset({"lgamma", "digamma"}),
    torch.float64: frozenset({
        "exp2", "log2", "log10", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh",
        "erfc", "erfinv", "lgamma", "digamma", "pow", "hypot", "fmod", "remainder", "floor_div", "nextafter",
        "exp", "erf", "tanh", "sin", "cos", "sqrt",
    }),
}  # fmt: skip
"""Functions without vectors in C++, by the dtype that they are computed in (a test compares it with the prelude).
The last line has some: `sqrt` is a slow instruction, in place of which ATen's library multiplies, and for the others
that library takes 0.4 to 0.9 of our time."""

LOGIC = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"})
BYTES = LOGIC | {"add", "sub", "mul", "maximum", "minimum", "neg", "abs"}
BYTEWISE: Mapping[torch.dtype, frozenset[str]] = {
    torch.bool: LOGIC | {"logical_not"}, torch.uint8: BYTES, torch.int8: BYTES,
}  # fmt: skip
"""Functions of single bytes, of which ATen computes a register full at a time."""

WORTH_A_CALL, BYTEWISE_WORTH_A_CALL = 1 << 8, 1 << 16
"""Elements from which on a call costs less than it saves: about a microsecond against 5 and 0.05 nanoseconds each."""


def library_call(group: Group, buffers: Mapping[str, Buffer], target: Target) -> Extern | None:
    """The call of ATen that computes `group`, if it is one function of whole tensors better left to it."""
    if target.is_gpu or len(group.members) != 1 or group.members[0].partial is not None:
        return None
    node = group.members[0].node
    if not isinstance(node, Pointwise) or node.out.base is not None:
        return None
    args, op = _full_arguments(node, buffers), node.body.ops[node.body.results[0]]
    if args is None or not isinstance(op, Compute) or not _is_faster(op, large_size_hint(points(node.axes))):
        return None
    call = call_of(op.op, node.out.spec, args, {})
    if call is None or call.args != args:
        return None
    return Extern((node.out,), call.target, call.args, call.kwargs, origin=node.origin)


def _is_faster(op: Compute, size: int) -> bool:
    scalar = op.op.name in SCALAR.get(op.dtype, ()) and size >= WORTH_A_CALL
    return scalar or (op.op.name in BYTEWISE.get(op.dtype, ()) and size >= BYTEWISE_WORTH_A_CALL)


def _full_arguments(node: Pointwise, buffers: Mapping[str, Buffer]) -> tuple[BufferArg, ...] | None:
    """The buffers that the only op of a body reads point by point, in the layout and dtype of its result."""
    spec, ops = node.out.spec, node.body.ops
    op = ops[node.body.results[0]]
    if not isinstance(op, Compute) or op.dtype != spec.dtype:
        return None
    index = tuple(axis.symbol for axis in node.axes)
    args = []
    for position in op.operands:
        load = ops[position]
        if not isinstance(load, Load) or load.mask is not None or load.index != index:
            return None
        given = buffers[load.buffer].spec
        if (given.dtype, given.sizes, given.strides) != (spec.dtype, spec.sizes, spec.strides):
            return None
        args.append(BufferArg(load.buffer))
    return tuple(args)
