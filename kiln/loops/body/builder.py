"""Building loop bodies: the handler whose abstract value is a position in a new body.

    builder = BodyBuilder()
    x = builder.load("x", (i0, i1), torch.float32)
    y = builder.load("x", (i0, i1), torch.float32)       # the same position as x
    body = builder.finish(builder.pointwise(PRIMS["mul"], torch.float32, x, y))

Equal ops share a position (all ops of a body are pure), ops on constants are folded by running them in eager, and
`finish` drops dead ops. `body.run(Inline(builder, {i0: j}))` copies a body with its loop symbols
replaced; a producer is inlined by giving `Inline` a function for the loads of its buffer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Prim
from kiln.loops.body.analyses import without_dead
from kiln.loops.body.body import (
    BodyOp,
    Check,
    Compute,
    Const,
    Index,
    IndexValue,
    Indirect,
    Load,
    LoopBody,
    LoopHandler,
    Random,
    Test,
)
from kiln.loops.body.bounds import bounds_of
from kiln.loops.body.reference import apply
from kiln.symbolic import Int, Relation, Symbol, is_static, substituted, symbol

LoadHook = Callable[[str, Index, torch.dtype, int | None], int | None]
"""The position of a value that replaces a load, or None to keep the load."""


@final
class BodyBuilder(LoopHandler[int]):
    """A body under construction; symbols that `indirect` binds are named `indirect_prefix` and a number."""

    def __init__(self, indirect_prefix: str = "j") -> None:
        self.ops: list[BodyOp] = []
        self.indirect_prefix = indirect_prefix
        self._positions: dict[object, int] = {}
        self._renamed: dict[Symbol, Int] = {}

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: int | None = None) -> int:
        if mask is not None and isinstance(always := self.ops[mask], Const):
            if not always.value:
                return self.constant(0, dtype)
            mask = None
        return self.append(Load(buffer, tuple(substituted(at, self._renamed) for at in index), dtype, mask))

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> int:
        return self.append(Const(_as_held(value, dtype), dtype))

    def index(self, expr: Int, dtype: torch.dtype) -> int:
        expr = substituted(expr, self._renamed)
        return self.constant(expr, dtype) if is_static(expr) else self.append(IndexValue(expr, dtype))

    def test(self, relation: Relation | bool) -> int:
        if not isinstance(relation, bool) and self._renamed:
            relation = relation.substitute(self._renamed)
        return self.constant(relation, torch.bool) if isinstance(relation, bool) else self.append(Test(relation))

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: int) -> int:
        known = self._folded(op, dtype, operands)
        return self.append(Compute(op, operands, dtype)) if known is None else known

    def indirect(self, symbol: Symbol, operand: int, size: Int, check: Check = Check.IN_SIZE) -> int:
        """Binds `symbol` for later indices; `bind` binds a fresh symbol instead."""
        found, position = self.bind_at(operand, substituted(size, self._renamed), check, prefer=symbol)
        if found != symbol:
            self._renamed[symbol] = found
        return position

    def random(self, distribution: str, seed: int, counter: Int, dtype: torch.dtype) -> int:
        return self.append(Random(distribution, seed, substituted(counter, self._renamed), dtype))

    def bind(self, operand: int, size: Int, check: Check = Check.IN_SIZE) -> Int:
        """A symbol for the integer at `operand`, an index into a dimension of `size`; a constant in range is itself."""
        return self.bind_at(operand, size, check)[0]

    def bind_at(
        self, operand: int, size: Int, check: Check = Check.IN_SIZE, prefer: Symbol | None = None
    ) -> tuple[Int, int]:
        """What `bind` gives, and the position of its value; the symbol is `prefer` if that name is free."""
        value = self.ops[operand]
        if isinstance(value, Const) and is_static(size) and -size <= value.value < size:
            return int(value.value) % size, operand
        bound = {op.symbol for op in self.ops if isinstance(op, Indirect)}
        made = prefer if prefer and prefer not in bound else symbol(f"{self.indirect_prefix}{len(bound)}")
        if check is not Check.IN_RANGE and self._is_in_range(operand, size):
            check = Check.IN_RANGE
        if check is Check.IN_SIZE and (index := self._not_negative(value, size)) is not None:
            operand, check = index, Check.NOT_NEGATIVE
        position = self._positions.setdefault(("indirect", operand, size, check), len(self.ops))
        if position == len(self.ops):
            self.ops.append(Indirect(made, operand, size, check))
        op = self.ops[position]
        assert isinstance(op, Indirect)
        return op.symbol, position

    def _is_in_range(self, operand: int, size: Int) -> bool:
        if not is_static(size):
            return False
        low, high = bounds_of(self.ops, operand)
        return low is not None and high is not None and low >= 0 and high < size

    def _not_negative(self, value: BodyOp, size: Int) -> int | None:
        """The position of x if `value` is where(x < 0, outside, x), as ops have it that do not count from the end."""
        if isinstance(value, Compute) and value.op.name == "where":
            negative, outside, x = (self.ops[position] for position in value.operands)
            largest = size if is_static(size) else torch.iinfo(torch.int64).max
            beyond = isinstance(outside, Const) and outside.value >= largest
            if beyond and isinstance(negative, Compute) and negative.op.name == "lt":
                below, zero = negative.operands
                if self.ops[below] == x and self.ops[zero] == Const(0, x.dtype):
                    return below
        return None

    def dtype_of(self, position: int) -> torch.dtype:
        return self.ops[position].dtype

    def convert(self, position: int, dtype: torch.dtype) -> int:
        """The value at `position` as a `dtype`."""
        return position if self.dtype_of(position) == dtype else self.pointwise(PRIMS["convert"], dtype, position)

    def finish(self, *results: int, used: frozenset[Symbol] = frozenset()) -> LoopBody:
        """The body that gives `results`, without dead ops; `used`: bound symbols that indices of effects use."""
        return without_dead(LoopBody(tuple(self.ops), results), used)

    def append(self, op: BodyOp) -> int:
        """The position of `op`, added unless an equal op is there."""
        position = self._positions.setdefault(op, len(self.ops))
        if position == len(self.ops):
            self.ops.append(op)
        return position

    def _folded(self, op: Prim, dtype: torch.dtype, operands: tuple[int, ...]) -> int | None:
        """The position of a result that needs no new op."""
        if op.name == "convert" and self.dtype_of(operands[0]) == dtype:
            return operands[0]
        ops = [self.ops[position] for position in operands]
        if all(isinstance(op, Const) for op in ops):
            return self._folded_constants(op, dtype, [op for op in ops if isinstance(op, Const)])
        if op.name == "where":
            return self._chosen(ops[0], *operands[1:])
        if op.name in ("bitwise_and", "bitwise_or") and dtype == torch.bool:
            for position, other in ((0, 1), (1, 0)):
                if isinstance(known := ops[position], Const):
                    return operands[other if bool(known.value) == (op.name == "bitwise_and") else position]
            return operands[0] if operands[0] == operands[1] else None
        return None

    def _chosen(self, condition: BodyOp, if_true: int, if_false: int) -> int | None:
        if isinstance(condition, Const):
            return if_true if condition.value else if_false
        return if_true if if_true == if_false else None

    def _folded_constants(self, op: Prim, dtype: torch.dtype, operands: list[Const]) -> int | None:
        if op.name in _MAY_FAIL and not dtype.is_floating_point:
            return None
        tensors = tuple(torch.tensor(operand.value, dtype=operand.dtype, device="cpu") for operand in operands)
        return self.constant(apply(op, dtype, tensors).item(), dtype)


_MAY_FAIL = frozenset({"floor_div", "trunc_div", "remainder", "fmod", "pow"})
"""Integer division by zero is an error of the run, not of the compile."""


@final
class Inline(LoopHandler[int]):
    """Copies ops into `builder`, symbols replaced by `values`, loads offered to `on_load` first.

    Symbols that the copied body binds by `indirect` get fresh names.
    """

    def __init__(self, builder: BodyBuilder, values: Mapping[Symbol, Int], on_load: LoadHook | None = None) -> None:
        self.builder, self.on_load = builder, on_load
        self.values: dict[Symbol, Int] = dict(values)

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: int | None = None) -> int:
        at = tuple(substituted(at, self.values) for at in index)
        position = self.on_load(buffer, at, dtype, mask) if self.on_load else None
        return self.builder.load(buffer, at, dtype, mask) if position is None else position

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> int:
        return self.builder.constant(value, dtype)

    def index(self, expr: Int, dtype: torch.dtype) -> int:
        return self.builder.index(substituted(expr, self.values), dtype)

    def test(self, relation: Relation) -> int:
        return self.builder.test(relation.substitute(self.values))

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: int) -> int:
        return self.builder.pointwise(op, dtype, *operands)

    def indirect(self, symbol: Symbol, operand: int, size: Int, check: Check = Check.IN_SIZE) -> int:
        size = substituted(size, self.values)
        self.values[symbol], position = self.builder.bind_at(operand, size, check)
        return position

    def random(self, distribution: str, seed: int, counter: Int, dtype: torch.dtype) -> int:
        return self.builder.random(distribution, seed, substituted(counter, self.values), dtype)


def _as_held(value: bool | int | float, dtype: torch.dtype) -> bool | int | float:
    """`value` as `dtype` holds it, so that equal constants are equal data."""
    if dtype == torch.bool:
        return bool(value)
    if not dtype.is_floating_point:
        return int(value)
    if dtype == torch.float64:
        return float(value)
    if dtype == torch.float32:
        return ctypes.c_float(float(value)).value
    held: float = torch.tensor(float(value), dtype=torch.float64, device="cpu").to(dtype).item()
    return held
