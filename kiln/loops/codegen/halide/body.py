"""A body as statements of Halide's Python language, which name expressions.

    v0 = add(load x[i0, i1], load mean[i0])       v0 = x[i1, i0]
                                                  v1 = mean[i0]
                                                  v2 = v0 + v1

The first dimension is the innermost one in Halide, so that indices are turned around.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import torch

from kiln.graph.prims.table import Prim
from kiln.loops.body.body import Check, Index, LoopHandler
from kiln.loops.codegen.halide.dialect import HALIDE, HALIDE_INTEGERS
from kiln.loops.codegen.integers import IntPrinter
from kiln.loops.codegen.numbers import conversion_steps
from kiln.support.records import dataclass
from kiln.symbolic import BoundAnalysis, Int, Relation, Symbol
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class NamedExpr:
    """The name of an expression, and its dtype."""

    text: str
    dtype: torch.dtype


@final
@dataclass(frozen=True, slots=True)
class ReadMemory:
    """What is read. `function`: the one that holds it, "" for a tensor; `further`: texts of its last indices."""

    spec: TensorSpec
    function: str = ""
    further: tuple[str, ...] = ()


@final
class HalideBody(LoopHandler[NamedExpr]):
    """Writes `lines`; `names` are texts of symbols, to which `indirect` adds."""

    def __init__(
        self, memory: Mapping[str, ReadMemory], bounds: BoundAnalysis, names: Mapping[Symbol, str], prefix: str
    ) -> None:
        self.memory, self.bounds, self.names, self.prefix = memory, bounds, dict(names), prefix
        self.lines: list[str] = []

    def ints(self) -> IntPrinter:
        return IntPrinter(self.bounds, HALIDE_INTEGERS, self.names)

    def define(self, text: str, dtype: torch.dtype) -> NamedExpr:
        HALIDE.dtype_name(dtype)
        name = f"{self.prefix}{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return NamedExpr(name, dtype)

    def load(self, buffer: str, index: Index, dtype: torch.dtype, mask: NamedExpr | None = None) -> NamedExpr:
        held = self.memory[buffer]
        at = [self.ints().text(place) for place in index]
        if mask is not None:
            at = [self.clamped(text, size) for text, size in zip(at, held.spec.sizes, strict=True)]
        text = element(held.function or buffer, [*reversed(at), *held.further])
        if held.spec.dtype == torch.bool:
            text = f"{text} != 0"
        loaded = self.define(text, held.spec.dtype)
        if mask is not None:
            zero = literal(0, held.spec.dtype)
            loaded = self.define(f"hl.select({mask.text}, {loaded.text}, {zero})", held.spec.dtype)
        return self.converted(loaded, dtype)

    def clamped(self, text: str, size: Int) -> str:
        """An index that is in range where the mask does not hold, too."""
        if (self.bounds.of(size).lo or 0) < 1:
            raise HALIDE.unsupported("a load under a mask", "its tensor may be empty")
        return f"hl.clamp({text}, 0, {self.ints().text(size)} - 1)"

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> NamedExpr:
        return NamedExpr(literal(value, dtype), dtype)

    def index(self, expr: Int, dtype: torch.dtype) -> NamedExpr:
        return self.define(f"hl.cast({HALIDE.dtype_name(dtype)}, {self.ints().text(expr)})", dtype)

    def test(self, relation: Relation) -> NamedExpr:
        return self.define(self.ints().relation(relation), torch.bool)

    def pointwise(self, op: Prim, dtype: torch.dtype, *operands: NamedExpr) -> NamedExpr:
        if op.name == "convert":
            return self.converted(operands[0], dtype)
        template = HALIDE.expr(op, operands[-1].dtype)
        return self.define(template.format(*[operand.text for operand in operands]), dtype)

    def converted(self, value: NamedExpr, dtype: torch.dtype) -> NamedExpr:
        if value.dtype == dtype:
            return value
        if dtype == torch.bool:
            return self.define(f"{value.text} != {literal(0, value.dtype)}", dtype)
        text = value.text
        for step in conversion_steps(value.dtype, dtype):
            text = f"hl.cast({HALIDE.dtype_name(step)}, {text})"
        return self.define(text, dtype)

    def indirect(self, symbol: Symbol, operand: NamedExpr, size: Int, check: Check) -> NamedExpr:
        if check is not Check.IN_RANGE:
            raise HALIDE.unsupported("an index that must be checked", "it cannot report a fault")
        self.names[symbol] = self.define(f"hl.i32({operand.text})", torch.int32).text
        return operand

    def random(self, distribution: str, seed: NamedExpr, counter: Int, dtype: torch.dtype) -> NamedExpr:
        raise HALIDE.unsupported("random numbers", "they are written in C++")


def element(name: str, indices: list[str]) -> str:
    """A function without dimensions is written with empty brackets."""
    return f"{name}[{', '.join(indices)}]" if indices else f"{name}[()]"


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        real = float(value)
        text = repr(real) if math.isfinite(real) else f'float("{real}")'
        return f"f32({text})" if dtype == torch.float32 else f"hl.f64({text})"
    return f"hl.cast({HALIDE.dtype_name(dtype)}, {int(value)})"
