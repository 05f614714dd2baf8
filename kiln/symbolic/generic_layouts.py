"""Questions of layout in a program that is exported: sizes and strides that differ in the example differ always.

contiguous(x: f32[8, n], strided (1, 8))       a copy; eager has a view where n is 1

So do those that data decide. A copy is right for all sizes, until somebody writes to it, or to what it was copied from:
then a view would have been seen to change, and what was taken for granted becomes guards and checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from kiln.support.location import Location
from kiln.symbolic.env import ShapeEnv, ShapeGuard
from kiln.symbolic.relation import Relation
from kiln.symbolic.values import hinted_truth


def decide_layout(env: ShapeEnv, relation: Relation | bool, where: Location | None) -> bool:
    """`env.decide`, for a relation without which a copy is made, or other strides are chosen."""
    is_open = env.taken is not None and env.known(relation) is None
    if not is_open or (env.has_hint(relation) and hinted_truth(env, relation)):
        return env.decide(relation, where)
    assert isinstance(relation, Relation) and env.taken is not None
    env.taken.append(ShapeGuard(relation.negate(), where))
    return False


@final
class TakenLayouts:
    """The tensors of which something was taken for granted, by the identity of their memory."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env
        self._guards: dict[int, list[ShapeGuard]] = {}
        self._memory: list[object] = []

    def note(self, memory: Iterable[object]) -> None:
        """What was taken since the last call, and of any of `memory`, is about all of it."""
        memory = list(memory)
        guards = [*dict.fromkeys(guard for each in memory for guard in self._guards.get(id(each), ()))]
        guards += self.env.taken or ()
        self.env.taken = []
        if guards:
            self._memory += memory  # while they are alive, nothing else has their identity
            self._guards.update({id(each): guards for each in memory})

    def written(self, memory: object) -> None:
        """Guard what was taken for granted of a tensor that is written."""
        for guard in self._guards.pop(id(memory), ()):
            self.env.assume(guard.relation, guard.location)
