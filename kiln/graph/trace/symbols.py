"""Symbolic sizes of one recording, as torch sees them: SymInts around expressions, numbers where only those will do.

    symbols.sym(s0 * 2)          a torch.SymInt, the same for the same expression
    symbols.hints((s0, 4))       (8, 4): sizes for C++, which asks Python for every answer that counts

Also the other way: what comes back from torch as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from kiln.support.location import Location
from kiln.symbolic import Expr, Int, Relation, ShapeEnv
from kiln.symbolic.node import from_sym, to_sym


def is_symbolic(values: Sequence[Int]) -> bool:
    return any([isinstance(one, Expr) for one in values])


UNKNOWN = 8191
"""Stands in C++ for a size that depends on data; an unlikely number, so that a leak shows."""


@final
class TraceSymbols:
    """The shape environment behind the fakes. `location` is the user's line that asks, for guards."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env
        self.location: Location | None = None
        self._made: dict[Expr, Any] = {}

    def where(self) -> Location | None:
        return self.location

    def decide(self, relation: Relation | bool) -> bool:
        """Does it hold? A guard where that depends on the hints."""
        return self.env.decide(relation, self.location)

    def expect(self, relation: Relation | bool) -> bool:
        """Does it hold? A check at run time where only data tell."""
        return self.env.expect(relation, self.location)

    def specialise(self, value: Any) -> Any:
        """The number of a symbolic size in this call, with a guard; other values stay."""
        if isinstance(value, torch.SymInt):
            value = from_sym(value)
        return self.env.specialise(value, self.location) if isinstance(value, Expr) else value

    def sym(self, value: Int) -> Any:
        """What torch takes: an int, or the SymInt of an expression."""
        if not isinstance(value, Expr):
            return value
        made = self._made.get(value)
        if made is None:
            made = self._made[value] = to_sym(value, self.env, self.where)
        return made

    def syms(self, values: Sequence[Int]) -> list[Any]:
        return [self.sym(one) for one in values]

    def hint(self, value: Int) -> int:
        if not isinstance(value, Expr):
            return value
        return self.env.hint(value) if self.env.has_hint(value) else UNKNOWN

    def hints(self, values: Sequence[Int]) -> tuple[int, ...]:
        return tuple([self.hint(one) for one in values])
