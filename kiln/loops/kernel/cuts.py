"""Where a phase that moves elements changes along its lanes what it moves.

    phase (i1: 103):
        v0 = bitwise_and(test(1 <= i1), test(i1 <= 100))
        out[i0, i1] = where(v0, load x[i0, i1 - 1] if v0, f32(0.0))             =>      cuts of i1: 1, 101

Between two cuts every test has one answer for all lanes, so that no mask is made: a part is copied, or filled.
Paddings, triangles, bands and shifts are such phases.
"""

from __future__ import annotations

from kiln.loops.body.analyses import bound_symbols
from kiln.loops.body.body import BodyOp, Compute, Const, Load, Test
from kiln.loops.body.indexing import stride_of
from kiln.loops.kernel.kernel import Phase, Store
from kiln.symbolic import Int, Relation, Symbol

MOST_CUTS, MOST_FLOPS = 4, 4
"""More parts are too short for vectors; where much is computed, a mask costs little."""
CHOICES = frozenset(("where", "bitwise_and", "bitwise_or", "bitwise_not", "logical_not"))


def lane_cuts(phase: Phase, lane: Symbol) -> tuple[Int, ...]:
    """The first lanes of the parts but the first; none where cutting does not pay, or is not possible."""
    if not all(isinstance(effect, Store) and effect.combine is None for effect in phase.effects):
        return ()
    if sum(map(_flops, phase.body.ops)) > MOST_FLOPS:
        return ()
    data = bound_symbols(phase.body)
    cuts: dict[Int, None] = {}
    for op in phase.body.ops:
        if not isinstance(op, Test) or lane not in op.relation.free_symbols():
            continue
        changes = _changes(op.relation, lane)
        if not changes or data & op.relation.free_symbols():
            return ()
        cuts |= dict.fromkeys(changes)
    return tuple(cuts) if len(cuts) <= MOST_CUTS else ()


def only_moves(phase: Phase) -> bool:
    """Whether numbers are stored as they are, so that to do it twice changes nothing."""
    return not any(map(_flops, phase.body.ops))


def _flops(op: BodyOp) -> int:
    if isinstance(op, Compute):
        return 0 if op.op.name in CHOICES else max(op.op.flops, 1)
    return 0 if isinstance(op, Load | Const | Test) else 1


def _changes(relation: Relation, lane: Symbol) -> tuple[Int, ...]:
    """The lanes from which on the relation may have another answer."""
    step = stride_of(relation.difference, lane)
    if step not in (1, -1):
        return ()
    zero = -step * (relation.difference - step * lane)  # the lane at which the difference is 0
    if relation.kind == "le":
        return (zero + 1,) if step == 1 else (zero,)
    return (zero, zero + 1)
