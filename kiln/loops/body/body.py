"""The body of a loop: a short SSA program for one point of the iteration space, run by handlers.

    body(i0, i1):                            # layer norm's centring
        v0 = load x[i0, i1]
        v1 = load mean[i0]
        v2 = sub(v0, v1) : f32
        -> v2

A body is data: it is hashed, compared (equal kernels are compiled once), printed and rewritten. Every analysis and
every printer is a `LoopHandler`, passed in and never ambient: `body.run(handler)` folds the handler over the ops.
`BodyBuilder` is the handler whose abstract value is a position in a new body, so that inlining a producer and
substituting indices is running its body into the consumer's builder.

Indices are symbolic expressions over loop symbols and size symbols, one per dimension of the buffer, whatever its
layout. A data-dependent index becomes a symbol by `indirect`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import ClassVar, Protocol, TypeVar, final

import torch

from kiln.graph.prims.table import Prim
from kiln.support.records import dataclass
from kiln.symbolic import Int, Relation, Symbol

Index = tuple[Int, ...]
V = TypeVar("V")


@final
@dataclass(frozen=True, slots=True)
class Load:
    """The element of `buffer` at `index`; 0, without a read, where `mask` (the position of a bool) is false."""

    buffer: str
    index: Index
    dtype: torch.dtype
    mask: int | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """Equal constants are identical to the bit: kernels are found by their bodies, and 0.0 is not -0.0."""

    value: bool | int | float
    dtype: torch.dtype

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const) or self.dtype is not other.dtype:
            return False
        mine, theirs = self.value, other.value
        if type(mine) is not type(theirs):
            return False
        return repr(mine) == repr(theirs) if mine == 0 or mine != mine else mine == theirs

    def __hash__(self) -> int:
        return hash((self.value if self.value == self.value else "nan", self.dtype))


@final
@dataclass(frozen=True, slots=True)
class IndexValue:
    expr: Int
    dtype: torch.dtype


@final
@dataclass(frozen=True, slots=True)
class Test:
    """Whether a relation of index expressions holds (bounds of cat, pad and slices; causal masks)."""

    relation: Relation
    dtype: ClassVar[torch.dtype] = torch.bool


@final
@dataclass(frozen=True, slots=True)
class Compute:
    """A POINTWISE primitive on earlier positions; `dtype` is that of the result."""

    op: Prim
    operands: tuple[int, ...]
    dtype: torch.dtype


@final
class Check(Enum):
    """Which values of an index set the kernel's status. The others count from the end if they are negative."""

    IN_SIZE = "in size"  # outside of [-size, size)
    NOT_NEGATIVE = "not negative"  # outside of [0, size)
    IN_RANGE = "in range"  # known to be in [0, size)


@final
@dataclass(frozen=True, slots=True)
class Indirect:
    """Binds `symbol` to an integer value for use in later indices of a dimension of `size`."""

    symbol: Symbol
    operand: int
    size: Int
    check: Check = Check.IN_SIZE
    dtype: ClassVar[torch.dtype] = torch.int64


@final
@dataclass(frozen=True, slots=True)
class Random:
    """A random number of stream (seed, offset) at counter `counter`: "uniform" in [0, 1), "normal", or raw "bits"."""

    distribution: str
    seed: int
    counter: Int
    dtype: torch.dtype


BodyOp = Load | Const | IndexValue | Test | Compute | Indirect | Random


class LoopHandler(Protocol[V]):
    """One method per kind of op: an analysis or a printer."""

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: V | None) -> V: ...
    def constant(self, value: bool | int | float, dtype: torch.dtype) -> V: ...
    def index(self, expr: Int, dtype: torch.dtype) -> V: ...
    def test(self, relation: Relation) -> V: ...
    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: V) -> V: ...
    def indirect(self, symbol: Symbol, operand: V, size: Int, check: Check) -> V: ...
    def random(self, distribution: str, seed: V, counter: Int, dtype: torch.dtype) -> V: ...


@final
@dataclass(frozen=True, slots=True)
class LoopBody:
    """`ops` in order; operands and `results` are positions of ops."""

    ops: tuple[BodyOp, ...]
    results: tuple[int, ...]

    def run(self, handler: LoopHandler[V]) -> tuple[V, ...]:
        """Fold `handler` over the ops; the values of `results`."""
        values: list[V] = []
        for op in self.ops:
            values.append(_step(op, handler, values))
        return tuple(values[position] for position in self.results)

    def mapped(self, change: Callable[[BodyOp], BodyOp]) -> LoopBody:
        """The body with `change` applied to its ops, whose positions stay; itself if nothing changes."""
        ops = tuple([change(op) for op in self.ops])
        return self if ops == self.ops else LoopBody(ops, self.results)


def _step(op: BodyOp, handler: LoopHandler[V], values: list[V]) -> V:
    match op:
        case Compute(prim, operands, dtype):
            return handler.pointwise(prim, dtype, *(values[position] for position in operands))
        case Load(buffer, index, dtype, mask):
            return handler.load(buffer, index, dtype, None if mask is None else values[mask])
        case Const(value, dtype):
            return handler.constant(value, dtype)
        case IndexValue(expr, dtype):
            return handler.index(expr, dtype)
        case Test(relation):
            return handler.test(relation)
        case Indirect(symbol, operand, size, check):
            return handler.indirect(symbol, values[operand], size, check)
        case Random(distribution, seed, counter, dtype):
            return handler.random(distribution, values[seed], counter, dtype)
