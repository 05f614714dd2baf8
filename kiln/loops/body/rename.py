"""Renaming in bodies: buffers get other names, symbols other values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from kiln.loops.body.body import BodyOp, Index, IndexValue, Indirect, Load, LoopBody, Random, Test
from kiln.loops.body.indexing import Axis
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol, substituted
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class Renaming:
    """New names of buffers and locals, new values of symbols; what is not listed stays."""

    names: Mapping[str, str]
    symbols: Mapping[Symbol, Int]

    def name(self, old: str) -> str:
        return self.names.get(old, old)

    def value(self, old: Int) -> Int:
        return substituted(old, self.symbols)

    def index(self, old: Index) -> Index:
        return tuple(self.value(at) for at in old)

    def bound(self, old: Symbol) -> Symbol:
        """The new name of a symbol where it is bound."""
        new = self.symbols.get(old, old)
        if not isinstance(new, Symbol):
            raise ValueError(f"{old} is bound here and cannot become {new}")
        return new

    def axes(self, old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(self.bound(axis.symbol), self.value(axis.size)) for axis in old)

    def spec(self, old: TensorSpec) -> TensorSpec:
        return old.with_view(self.index(old.sizes), self.index(old.strides), self.value(old.offset))


def rename_body(body: LoopBody, by: Renaming) -> LoopBody:
    """`body` renamed. Raises `ValueError` if a relation becomes decided: such a body has to be rebuilt."""
    return body.mapped(lambda op: _rename_op(op, by))


def _rename_op(op: BodyOp, by: Renaming) -> BodyOp:
    match op:
        case Load(buffer, index, dtype, mask):
            return Load(by.name(buffer), by.index(index), dtype, mask)
        case IndexValue(expr, dtype):
            return IndexValue(by.value(expr), dtype)
        case Test(relation):
            renamed = relation.substitute(by.symbols)
            if isinstance(renamed, bool):
                raise ValueError(f"{relation} becomes {renamed}")
            return Test(renamed)
        case Indirect(bound, operand, size, check):
            return Indirect(by.bound(bound), operand, by.value(size), check)
        case Random():
            return replace(op, counter=by.value(op.counter))
    return op
