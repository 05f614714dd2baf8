"""Symbolic sizes of a recording as torch sees them: SymInts around expressions, or hints.

symbols.sym(s0 * 2)          a torch.SymInt, the same for the same expression
symbols.hints((s0, 4))       (8, 4): sizes for C++, which asks Python wherever they matter
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import final

import torch

from kiln.support.location import Location
from kiln.symbolic import Expr, Int, Relation, ShapeEnv, rel_eq
from kiln.symbolic.env import assume_likely
from kiln.symbolic.generic_layouts import decide_layout
from kiln.symbolic.node import from_sym, to_sym
from kiln.symbolic.values import Real, has_hints, specialise_real


def is_symbolic(values: Sequence[Int]) -> bool:
    return any([isinstance(value, Expr) for value in values])


UNKNOWN = 8191
"""The size in C++ of a data-dependent dimension; an unlikely number, so that leaks are noticed."""


@final
class TraceSymbols:
    """The shape environment of the fakes. `location`: the user's present line, for guards."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env
        self.location: Location | None = None
        self._made: dict[Expr, torch.SymInt] = {}

    def where(self) -> Location | None:
        return self.location

    def decide_layout(self, relation: Relation | bool) -> bool:
        """Whether it holds; an export may take it to be false without a guard."""
        return self.decide(relation) if self.env.taken is None else decide_layout(self.env, relation, self.location)

    def decide(self, relation: Relation | bool) -> bool:
        """Whether it holds; adds a guard if that depends on hints."""
        if self.is_assumed(relation):
            assert isinstance(relation, Relation)
            return assume_likely(self.env, relation, self.location)
        return self.env.decide(relation, self.location)

    def is_assumed(self, relation: Relation | bool) -> bool:
        return self.env.assumes_data and self.env.known(relation) is None and not self.env.has_hint(relation)

    def is_empty(self, sizes: Iterable[Int]) -> bool:
        """Whether no elements make any layout contiguous; sizes that depend on data are taken to be positive."""
        return any(self.env.has_hint(size) and self.decide_layout(rel_eq(size, 0)) for size in sizes)

    def expect(self, relation: Relation | bool) -> bool:
        """Whether it holds; adds a check at run time if that depends on data."""
        return self.env.expect(relation, self.location)

    def specialise(self, value: Int | torch.SymInt) -> int:
        """The value of a symbolic size in this call, with a guard."""
        if isinstance(value, torch.SymInt):
            value = from_sym(value)
        return self.env.specialise(value, self.location) if isinstance(value, Expr) else value

    def compare(
        self, function: Callable[[float, float], bool], left: Int | float | Real, right: Int | float | Real
    ) -> bool | None:
        """What a comparison of numbers of the caller is, which each call checks; None where data decide, or where
        nobody checks calls: in an export."""
        if self.env.taken is not None or not (has_hints(self.env, left) and has_hints(self.env, right)):
            return None
        assumed = None if self.env.assume_number is None else self.env.assume_number(function, left, right)
        if assumed is not None:
            return assumed
        numbers = (specialise_real(self.env, number, self.location) for number in (left, right))
        return function(*numbers)

    def sym(self, value: Int) -> int | torch.SymInt:
        """The SymInt of an expression; integers are unchanged."""
        if not isinstance(value, Expr):
            return value
        made = self._made.get(value)
        if made is None:
            made = self._made[value] = to_sym(value, self.env, self.where)
        return made

    def syms(self, values: Sequence[Int]) -> list[int | torch.SymInt]:
        return [self.sym(value) for value in values]

    def hint(self, value: Int) -> int:
        if not isinstance(value, Expr):
            return value
        return self.env.hint(value) if self.env.has_hint(value) else UNKNOWN

    def hints(self, values: Sequence[Int]) -> tuple[int, ...]:
        return tuple([self.hint(value) for value in values])
