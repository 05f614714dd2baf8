"""Types of a kernel's parameters, and the width of its indices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from kiln.loops.body.body import BodyOp, IndexValue, Indirect, Load, Random, Test
from kiln.loops.body.indexing import axis_range
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.program.nodes import Buffer
from kiln.symbolic import BoundAnalysis, Expr, Int, Range, Symbol, product
from kiln.symbolic.expr import Extremum, Quotient
from kiln.tensor.spec import TensorSpec

_TYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.uint16: "u16",
    torch.uint32: "u32", torch.uint64: "u64", torch.bool: "i1",
}  # fmt: skip
_MOST = (1 << 31) - (1 << 16)  # masked points of the last block lie beyond the last element
_PASSED = frozenset((torch.float64, torch.float32, torch.int64, torch.int32))
"""Types in which a launch passes a number itself."""


def parameter_type(param: Buffer, by_value: bool) -> str:
    """`*fp32`, a pointer, or `fp32`, the number itself."""
    kind = _TYPES[param.spec.dtype]
    return kind if by_value else f"*{kind}"


def passed_by_value(kernel: KernelIR) -> frozenset[str]:
    """Scalar tensors on the CPU among tensors on a GPU: the launch reads them, and no copy has to wait for it."""
    if all([param.spec.device.type == "cpu" for param in kernel.params]):
        return frozenset()
    return frozenset([
        param.name for param in kernel.params
        if param.spec.device.type == "cpu" and param.spec.sizes == () and param.spec.dtype in _PASSED
        and param.name not in kernel.writes
    ])  # fmt: skip


def int_type(wide: bool) -> str:
    return "i64" if wide else "i32"


def is_wide(kernel: KernelIR, ranges: Mapping[Symbol, Range]) -> bool:
    """May an index, a number made of indices, or an element's number need more than 32 bits? Unknown sizes may.
    `ranges`: of axes and sizes."""
    spans: list[Int] = [_span(param.spec) for param in kernel.params]
    spans.append(product(axis.size for axis in kernel.units))
    spans += [product(axis.size for axis in phase.axes) for phase in kernel.phases]
    bounds = BoundAnalysis({**ranges, **dict(_looked_up(kernel, BoundAnalysis(ranges)))})
    tops = [bounds.of(span).hi for span in spans]
    if not all(top is not None and top < _MOST for top in tops):
        return True
    found = [bounds.of(part) for value in _index_values(kernel) for part in _parts(value)]
    return not all(low is not None and top is not None and low > -_MOST and top < _MOST for low, top in found)


def _looked_up(kernel: KernelIR, bounds: BoundAnalysis) -> Iterator[tuple[Symbol, Range]]:
    """A loaded index lies in the dimension that it selects from."""
    for phase in kernel.phases:
        for op in phase.body.ops:
            if isinstance(op, Indirect):
                yield op.symbol, axis_range(op.size, bounds)


def _index_values(kernel: KernelIR) -> Iterator[Int]:
    for phase in kernel.phases:
        for op in phase.body.ops:
            yield from _values_of(op)
        for store in phase_stores(phase):
            yield from store.index


def _values_of(op: BodyOp) -> tuple[Int, ...]:
    if isinstance(op, Load):
        return op.index
    if isinstance(op, IndexValue):
        return (op.expr,)
    if isinstance(op, Test):
        return op.relation.lhs, op.relation.rhs
    return (op.counter,) if isinstance(op, Random) else ()


def _parts(value: Int) -> Iterator[Int]:
    """`value` and what is divided or compared in it: sums may wrap around and come right again, these may not."""
    yield value
    for monomial, _ in value.terms if isinstance(value, Expr) else ():
        for atom in monomial:
            if isinstance(atom, Quotient):
                yield from _parts(atom.dividend)
            elif isinstance(atom, Extremum):
                for arg in atom.args:
                    yield from _parts(arg)


def _span(spec: TensorSpec) -> Int:
    """Elements up to the last one; masked points of the last block may lie slightly beyond."""
    total: Int = 1
    for size, stride in zip(spec.sizes, spec.strides, strict=True):
        total = total + size * stride
    return total
