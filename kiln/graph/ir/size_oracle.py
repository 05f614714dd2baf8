"""An oracle for sizes that makes no guards: it answers from what has been decided before.

GuardFreeOracle(env).decide(rel_eq(s0, 1))      False after the recording asked; UnknownRelation if nothing tells
"""

from __future__ import annotations

from typing import final

from kiln.symbolic import Expr, Int, Relation, ShapeEnv, rel_eq


class UnknownRelation(Exception):
    """Nothing known answers a question about symbols."""


@final
class GuardFreeOracle:
    """A `SizeOracle` for stages after the recording."""

    def __init__(self, env: ShapeEnv | None = None) -> None:
        self.env = env

    def decide(self, relation: Relation | bool) -> bool:
        answer = relation if isinstance(relation, bool) else self.env.known(relation) if self.env else None
        if answer is None:
            raise UnknownRelation
        return answer

    expect = decide

    def hint(self, value: Int) -> int | None:
        """Its number in the call that is compiled, for costs only; None where none is known."""
        if not isinstance(value, Expr):
            return value
        return self.env.hint(value) if self.env is not None and self.env.has_hint(value) else None

    def differ(self, left: Int, right: Int) -> bool:
        """Are they known to differ?"""
        if left == right:
            return False
        if not isinstance(left, Expr) and not isinstance(right, Expr):
            return True
        try:
            return not self.decide(rel_eq(left, right))
        except UnknownRelation:
            return False
