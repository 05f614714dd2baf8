"""Running loop bodies on real tensors.

    TorchHandler(values, read, faults)      body.run(handler) gives one tensor per result
    axis_values((i0: 4, i1: 3), {})         i0 = [[0], [1], [2], [3]], i1 = [[0, 1, 2]]

Nothing is looped over: a loop symbol is a tensor that holds its values along a dimension of its own, an index
expression is a tensor of indices, a load is advanced indexing. Speed is that of a few torch calls per op; memory is
that of the iteration space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import final

import torch

from kiln.graph.prims.table import Prim
from kiln.loops.body.body import Check, Index, LoopHandler
from kiln.loops.body.indexing import Axis
from kiln.loops.body.philox import random_numbers
from kiln.loops.body.reference import apply
from kiln.support.records import dataclass
from kiln.symbolic import Expr, FloorDiv, Int, Min, Relation, Symbol
from kiln.symbolic.expr import Extremum, Quotient

Tensor = torch.Tensor

IntValue = int | Tensor
"""The value of an index expression: a number, or one per point of the iteration space."""


def evaluate_int(value: Int, values: Mapping[Symbol, IntValue]) -> IntValue:
    if not isinstance(value, Expr):
        return value
    if isinstance(value, Symbol):
        return values[value]
    if isinstance(value, Quotient):
        dividend, divisor = evaluate_int(value.dividend, values), evaluate_int(value.divisor, values)
        return dividend // divisor if isinstance(value, FloorDiv) else dividend % divisor
    if isinstance(value, Extremum):
        pick = torch.minimum if isinstance(value, Min) else torch.maximum
        parts = [torch.as_tensor(evaluate_int(arg, values), device="cpu") for arg in value.args]
        whole = reduce(pick, parts)
        return int(whole) if whole.dim() == 0 else whole
    total: IntValue = 0
    for monomial, coefficient in value.terms:
        term: IntValue = coefficient
        for atom in monomial:
            term = term * evaluate_int(atom, values)
        total = total + term
    return total


def number(value: Int, values: Mapping[Symbol, IntValue]) -> int:
    return int(evaluate_int(value, values))


@final
@dataclass
class Faults:
    """The first fault that kernels report, or None."""

    fault: str | None = None

    def report(self, fault: str) -> None:
        self.fault = self.fault or fault


Read = Callable[[str], tuple[Tensor, Index]]
"""The tensor of a buffer name, and indices to put before those of the access."""


@final
@dataclass
class TorchHandler(LoopHandler[Tensor]):
    """A value is a tensor with one dimension per axis, of size 1 where it does not depend on it."""

    values: dict[Symbol, IntValue]
    read: Read
    faults: Faults

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: Tensor | None = None) -> Tensor:
        tensor, before = self.read(buffer)
        at = self.coordinates((*before, *index))
        if mask is None:
            return tensor[at] if at else tensor.clone()
        if tensor.numel() == 0:
            return torch.zeros((), dtype=tensor.dtype, device="cpu").expand(mask.shape)
        inside = [torch.where(mask, position, 0) for position in at]
        loaded = tensor[tuple(inside)] if inside else tensor
        return torch.where(mask, loaded, torch.zeros((), dtype=tensor.dtype, device="cpu"))

    def coordinates(self, index: Index) -> tuple[Tensor, ...]:
        return tuple(torch.as_tensor(evaluate_int(at, self.values), device="cpu") for at in index)

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Tensor:
        return torch.tensor(value, dtype=dtype, device="cpu")

    def index(self, expr: Int, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(evaluate_int(expr, self.values), device="cpu").to(dtype)

    def test(self, relation: Relation) -> Tensor:
        left, right = (
            torch.as_tensor(evaluate_int(side, self.values), device="cpu") for side in (relation.lhs, relation.rhs)
        )
        compare: Callable[[Tensor, Tensor], Tensor] = getattr(torch, relation.op)
        return compare(left, right)

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: Tensor) -> Tensor:
        divides = op.name in ("floor_div", "trunc_div", "remainder", "fmod") and not dtype.is_floating_point
        if divides and bool((operands[1] == 0).any()):
            self.faults.report("division by zero")
            operands = (operands[0], operands[1].where(operands[1] != 0, 1))
        return apply(op, dtype, operands)

    def indirect(self, symbol: Symbol, operand: Tensor, size: Int, check: Check = Check.IN_SIZE) -> Tensor:
        limit = evaluate_int(size, self.values)
        at = operand.to(torch.int64)
        lowest = -limit if check is Check.IN_SIZE else 0
        if bool(((at < lowest) | (at >= limit)).any()):
            self.faults.report("index out of range")
            at = torch.zeros_like(at)
        at = torch.where(at < 0, at + limit, at)
        self.values[symbol] = at
        return at

    def random(self, distribution: str, seed: Tensor, counter: Int, dtype: torch.dtype) -> Tensor:
        counters = torch.as_tensor(evaluate_int(counter, self.values), device="cpu")
        return random_numbers(distribution, seed, counters, dtype)


def axis_values(
    axes: Sequence[Axis], sizes: Mapping[Symbol, IntValue]
) -> tuple[dict[Symbol, IntValue], tuple[int, ...]]:
    """Each loop symbol as a tensor along a dimension of its own, and the extents of the iteration space."""
    extents = tuple(number(axis.size, sizes) for axis in axes)
    values: dict[Symbol, IntValue] = {}
    for position, axis in enumerate(axes):
        shape = [1] * len(axes)
        shape[position] = extents[position]
        values[axis.symbol] = torch.arange(extents[position], device="cpu").view(shape)
    return values, extents
