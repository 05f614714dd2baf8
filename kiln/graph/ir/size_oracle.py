"""A size oracle for stages after the recording: it answers from what is known and adds no guards.

GuardFreeOracle(env).decide(rel_eq(s0, 1))      False if the recording guarded it; else UnknownRelation
"""

from __future__ import annotations

from typing import final

from kiln.symbolic import Expr, Int, Relation, ShapeEnv, rel_eq


class UnknownRelation(Exception):
    """What is known does not decide a relation between symbols."""


@final
class GuardFreeOracle:
    """Without `env`, nothing is known."""

    def __init__(self, env: ShapeEnv | None = None) -> None:
        self.env = env

    def decide(self, relation: Relation | bool) -> bool:
        answer = relation if isinstance(relation, bool) else self.env.known(relation) if self.env else None
        if answer is None:
            raise UnknownRelation
        return answer

    expect = decide_layout = decide

    def is_assumed(self, relation: Relation | bool) -> bool:
        return False

    def hint(self, value: Int) -> int | None:
        """The value in the call that is compiled, for cost estimates; None where it has none."""
        if not isinstance(value, Expr):
            return value
        return self.env.hint(value) if self.env is not None and self.env.has_hint(value) else None

    def differ(self, left: Int, right: Int) -> bool:
        """Whether they are known to differ."""
        if left == right:
            return False
        if not isinstance(left, Expr) and not isinstance(right, Expr):
            return True
        try:
            return not self.decide(rel_eq(left, right))
        except UnknownRelation:
            return False
