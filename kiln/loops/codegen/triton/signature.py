"""Types of a kernel's parameters, and the width of its indices."""

from __future__ import annotations

import torch

from kiln.graph.prims.spec import TensorSpec
from kiln.loops.ir.kernel import KernelIR
from kiln.symbolic import BoundAnalysis, Int, product

_TYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.uint16: "u16",
    torch.uint32: "u32", torch.uint64: "u64", torch.bool: "i1",
}  # fmt: skip
_MOST = (1 << 31) - (1 << 16)


def pointer_type(dtype: torch.dtype) -> str:
    """`*fp32`."""
    return f"*{_TYPES[dtype]}"


def int_type(wide: bool) -> str:
    return "i64" if wide else "i32"


def is_wide(kernel: KernelIR, bounds: BoundAnalysis) -> bool:
    """May an index or the number of an element need more than 32 bits?

    Sizes that are not known may be any: 32 bits would have to be guarded.
    """
    spans: list[Int] = [_span(one.spec) for one in kernel.params]
    spans.append(product(axis.size for axis in kernel.units))
    spans += [product(axis.size for axis in phase.axes) for phase in kernel.phases]
    tops = [bounds.of(span).hi for span in spans]
    return not all(top is not None and top < _MOST for top in tops)


def _span(spec: TensorSpec) -> Int:
    """Elements up to the last one; masked points of the last block may lie a little behind."""
    total: Int = 1
    for size, stride in zip(spec.sizes, spec.strides, strict=True):
        total = total + size * stride
    return total
