"""Questions of layout in a program that is exported: sizes and strides that differ in the example differ always.

contiguous(x: f32[8, n], strided (1, 8))       a copy; eager has a view where n is 1

A copy is right for all sizes, until somebody writes: then a view would have been seen to change, and what was taken
for granted becomes guards.
"""

from __future__ import annotations

from kiln.support.location import Location
from kiln.symbolic.env import ShapeEnv, ShapeGuard
from kiln.symbolic.relation import Relation
from kiln.symbolic.values import hinted_truth


def decide_layout(env: ShapeEnv, relation: Relation | bool, where: Location | None) -> bool:
    """`env.decide`, for a relation without which a copy is made, or other strides are chosen."""
    is_open = env.taken is not None and env.known(relation) is None and env.has_hint(relation)
    if not is_open or hinted_truth(env, relation):
        return env.decide(relation, where)
    assert isinstance(relation, Relation) and env.taken is not None
    env.taken.append(ShapeGuard(relation.negate(), where))
    return False


def guard_taken(env: ShapeEnv) -> None:
    """Guard what was taken for granted, and take nothing any more."""
    taken, env.taken = env.taken or (), None
    for guard in taken:
        env.assume(guard.relation, guard.location)
