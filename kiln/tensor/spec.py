"""What the compiler knows of a value: dtype, sizes, strides, offset, device.

f32[4, s0]                      contiguous on the CPU
f32[4, s0 | 1, 4]               sizes, then strides where they are not those of a fresh tensor
f32[4, s0 at 8]                 the first element is number 8 of the storage
bf16[8, 128 @cuda:0]            another device than the CPU
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Protocol, final

import torch

from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, Relation, product, sym_max
from kiln.tensor.dtypes import DTYPE_NAMES

CPU = torch.device("cpu")


class SizeOracle(Protocol):
    """Answers questions about sizes; a `ShapeEnv` records a guard where the answer depends on the hint."""

    def decide(self, relation: Relation | bool) -> bool: ...

    def decide_layout(self, relation: Relation | bool) -> bool:
        """As `decide`, where False is never wrong: it makes a copy, or other strides."""
        ...

    def expect(self, relation: Relation | bool) -> bool:
        """As `decide`, but a relation that depends on data is assumed to hold, and checked at run time."""
        ...

    def is_assumed(self, relation: Relation | bool) -> bool:
        """Whether `decide` would take the likely answer, since data decide."""
        ...


@final
@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A dense strided tensor. Sizes, strides and offset count elements."""

    dtype: torch.dtype
    sizes: tuple[Int, ...]
    strides: tuple[Int, ...]
    offset: Int = 0
    device: torch.device = CPU

    @property
    def rank(self) -> int:
        return len(self.sizes)

    def numel(self) -> Int:
        return product(self.sizes)

    def is_contiguous(self) -> bool:
        """Strides are textually those of a contiguous tensor (a size-1 dimension may have any stride)."""
        expected: Int = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size == 1:
                continue
            if stride != expected:
                return False
            expected = expected * size
        return True

    def storage_elements(self) -> Int:
        """Elements from the start of the storage to the last one that the tensor reaches."""
        if 0 in self.sizes:
            return self.offset
        reach = sum(((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True)), self.offset)
        return reach + 1

    def with_sizes(self, sizes: tuple[Int, ...]) -> TensorSpec:
        """The same dtype and device, contiguous, at offset 0."""
        return TensorSpec(self.dtype, sizes, contiguous_strides(sizes), 0, self.device)

    def with_dtype(self, dtype: torch.dtype) -> TensorSpec:
        return replace(self, dtype=dtype)

    def with_view(self, sizes: tuple[Int, ...], strides: tuple[Int, ...], offset: Int) -> TensorSpec:
        return TensorSpec(self.dtype, sizes, strides, offset, self.device)

    def __str__(self) -> str:
        parts = [", ".join(str(size) for size in self.sizes)]
        if self.strides != contiguous_strides(self.sizes):
            parts.append("| " + ", ".join(str(stride) for stride in self.strides))
        if self.offset != 0:
            parts.append(f"at {self.offset}")
        if self.device != CPU:
            parts.append(f"@{self.device}")
        return f"{DTYPE_NAMES[self.dtype]}[{' '.join(part for part in parts if part)}]"


@final
@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A Python number that enters a graph at run time; `int` scalars are symbols of the shape environment."""

    kind: type[int] | type[float] | type[bool]
    value: Int | None = None

    def __str__(self) -> str:
        return self.kind.__name__ if self.value is None else f"{self.kind.__name__}({self.value})"


Spec = TensorSpec | ScalarSpec | tuple["TensorSpec | ScalarSpec | None", ...]
"""Of a node: a tensor, a scalar, or the results of an op with several (None where it returns no tensor)."""


@lru_cache(maxsize=8192)
def contiguous_strides(sizes: tuple[Int, ...]) -> tuple[Int, ...]:
    """Row-major strides; as in eager, a dimension of size 0 counts as 1."""
    strides: list[Int] = []
    step: Int = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))


def eager_strides(spec: TensorSpec, base: TensorSpec | None = None) -> tuple[Int, ...]:
    """The strides that eager gives the tensor, also where a size that is a symbol turns out to be 0.

    f32[s0, s1]            max(1, s1), 1          no address depends on them then, so `spec` says s1, 1
    f32[s0, s2 | s1, 1]    max(1, s1), 1          a view of it: a part of each row

    Only of row-major tensors and views of them: of others eager's strides depend on the operator.
    """
    if all([isinstance(stride, int) for stride in spec.strides]):
        return spec.strides
    if spec.strides == contiguous_strides(spec.sizes):
        return _fresh_strides(spec.sizes)
    if base is None or base.strides != contiguous_strides(base.sizes):
        return spec.strides
    known = dict(zip(base.strides, _fresh_strides(base.sizes), strict=True))
    return tuple([known.get(stride, stride) for stride in spec.strides])


@lru_cache(maxsize=1024)
def _fresh_strides(sizes: tuple[Int, ...]) -> tuple[Int, ...]:
    """As `contiguous_strides`, with symbols that may be 0."""
    return contiguous_strides(tuple([sym_max(size, 1) if isinstance(size, Expr) else size for size in sizes]))
