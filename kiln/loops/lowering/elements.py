"""Elements of POINTWISE and CREATE ops: how one element of the result is computed.

add(x, bias)    at (i0, i1)    =>   add(element of x at (i0, i1), element of bias at (i1))
iota(start=2)   at (i0)        =>   index(i0 + 2)
full(x)         at (i0, i1)    =>   element of x at ()
"""

from __future__ import annotations

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.loops.body.body import Index
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.column import ELEMENT
from kiln.loops.lowering.errors import NoLowering
from kiln.symbolic import Int
from kiln.tensor.spec import ScalarSpec


def pointwise(body: Body, node: Node, index: Index, mask: int | None) -> int:
    spec = node.tensor
    operands = [body.broadcast_element(operand, index, spec.sizes, mask) for operand in node.inputs]
    return body.builder.pointwise(node.op, spec.dtype, *operands)


def division(body: Body, node: Node, index: Index, mask: int | None) -> int:
    """A masked load gives 0: where the mask does not hold, integers are divided by 1 instead."""
    spec = node.tensor
    left, right = [body.broadcast_element(operand, index, spec.sizes, mask) for operand in node.inputs]
    if mask is not None and not spec.dtype.is_floating_point:
        right = body.choose(spec.dtype, mask, right, body.builder.constant(1, spec.dtype))
    return body.builder.pointwise(node.op, spec.dtype, left, right)


DIVISIONS = frozenset({"floor_div", "trunc_div", "remainder", "fmod"})
for _row in PRIMS:
    if _row.kind is Kind.POINTWISE:
        ELEMENT[_row.name] = division if _row.name in DIVISIONS else pointwise


@ELEMENT("constant")
def constant(body: Body, node: Node, index: Index, mask: int | None) -> int:
    spec, value = node.tensor, node.attrs["value"]
    if isinstance(value, bool | int | float):
        return body.builder.constant(value, spec.dtype)
    return body.builder.index(value, spec.dtype)


@ELEMENT("scalar_tensor")
def scalar_tensor(body: Body, node: Node, index: Index, mask: int | None) -> int:
    scalar = node.inputs[0].spec
    if not isinstance(scalar, ScalarSpec) or scalar.value is None:
        raise NoLowering(op="scalar_tensor", problem=f"{scalar} has no symbol to pass to a kernel")
    return body.builder.index(scalar.value, node.tensor.dtype)


@ELEMENT("full")
def full(body: Body, node: Node, index: Index, mask: int | None) -> int:
    return body.element(node.inputs[0], (), mask)


@ELEMENT("iota")
def iota(body: Body, node: Node, index: Index, mask: int | None) -> int:
    start, step, dtype = node.attrs["start"], node.attrs["step"], node.tensor.dtype
    if not isinstance(start, float) and not isinstance(step, float):
        value: Int = start + index[0] * step
        return body.builder.index(value, dtype)
    # Eager computes start + step * i in double precision and rounds once.
    builder, wide = body.builder, torch.float64
    number = builder.index(index[0], wide)
    scaled = builder.pointwise(PRIMS["mul"], wide, number, builder.constant(float(step), wide))
    value_at = builder.pointwise(PRIMS["add"], wide, scaled, builder.constant(float(start), wide))
    return builder.pointwise(PRIMS["convert"], dtype, value_at)
