"""Combining into memory: atomic operations where GPUs have them, one point after the other elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kiln.loops.kernel.kernel import Store
from kiln.loops.program.nodes import ReduceOp
from kiln.tensor.spec import TensorSpec

_FLOATS = (torch.float16, torch.float32, torch.float64)
_INTEGERS = (torch.int32, torch.int64)
ATOMICS: Mapping[ReduceOp, tuple[str, tuple[torch.dtype, ...]]] = {
    ReduceOp.SUM: ("tl.atomic_add", (*_FLOATS, *_INTEGERS)),
    ReduceOp.MAX: ("tl.atomic_max", _INTEGERS),  # on floats it would lose NaN
    ReduceOp.MIN: ("tl.atomic_min", _INTEGERS),
}
"""The Triton operation for each way to combine, and the dtypes it supports on sm_80."""


def is_atomic(op: ReduceOp, dtype: torch.dtype) -> bool:
    return op in ATOMICS and dtype in ATOMICS[op][1]


def runs_in_order(store: Store, specs: Mapping[str, TensorSpec]) -> bool:
    """Must the points of a phase with this store run one after the other?"""
    spec = specs.get(store.target)
    return store.combine is not None and spec is not None and not is_atomic(store.combine, spec.dtype)
