"""Shape rules of reductions and scans, whose results are contiguous.

sum(f32[4, 8 | 1, 4], axes=(0,))    =  f32[8]
argmax(f32[4, 8], axes=(1,))        =  i64[4]
cumsum(f32[4, 8 | 1, 4], axis=0)    =  f32[4, 8]
"""

from __future__ import annotations

import torch

from kiln.graph.prims.meta.column import META
from kiln.tensor.spec import TensorSpec, contiguous_strides


def reduced(x: TensorSpec, axes: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
    """`x` without `axes`, contiguous."""
    sizes = tuple([size for axis, size in enumerate(x.sizes) if axis not in axes])
    return TensorSpec(dtype, sizes, contiguous_strides(sizes), 0, x.device)


META("sum", "prod", "amax", "amin", "any", "all")(lambda oracle, x, *, axes: reduced(x, axes, x.dtype))
META("argmax", "argmin")(lambda oracle, x, *, axes: reduced(x, axes, torch.int64))
META("cumsum", "cumprod", "cummax", "cummin")(lambda oracle, x, *, axis: x.with_sizes(x.sizes))
