"""Jumps on numbers that the program has drawn: the graph chooses between the sides.

    for t in range(4):                                       y = cell(y, x[0]) or cell(y, y), by a guard
        y = cell(y, x[t] if random.random() < 0.5 else y)    y = cell(y, cond(drawn_1 < 0.5, x[1], y))
                                                       =>    y = cell(y, cond(drawn_2 < 0.5, x[2], y))  ...

A guard on each would cost a variant for each way through the draws. The first jump of a capture is guarded: a program
with one has two variants, each of which computes its side only. So are jumps whose sides cannot be joined.
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.data_values import CHOOSING, GUARDED, relation_in_region
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.if_conversion import take_both_sides
from kiln.capture.interpreter.number_branches import NumberBranches, symbols_of
from kiln.capture.interpreter.speculation import ComputedNumber, Speculations
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import from_torch
from kiln.support.records import dataclass
from kiln.symbolic.relation import Relation


@final
@dataclass
class DrawnBranches:
    """How many jumps of one capture were on drawn numbers."""

    jumps: int = 0


def take_both_draws(frame: SymbolicFrame, condition: Symbolic, targets: tuple[int, int]) -> bool:
    """`take_both_sides` if drawn numbers decide the jump, and it is not the first one; False: its truth is guarded."""
    s = frame.state
    if s.needed.get((frame.code, frame.at), GUARDED) not in (GUARDED, *CHOOSING) or s.part(NumberBranches).depth:
        return False
    truth = condition.node.node._truth() if condition.python_type() is not float else None
    if not isinstance(truth, Relation) or not is_drawn(s, truth):
        return False
    found = s.part(DrawnBranches)
    found.jumps += 1
    return found.jumps > 1 and take_both_sides(frame, from_torch(s, relation_in_region(s, truth)), targets)


def is_drawn(s: CaptureState, truth: Relation) -> bool:
    """Whether all its numbers are computed in front of the region with what was drawn."""
    drawn = [record.given for record in s.recorder.inputs if record.is_drawn and record.given is not None]
    computed = {
        number.node.value
        for made, number in s.part(Speculations).numbers.items()
        if isinstance(made, ComputedNumber) and number is not None and any(g in drawn for g in made.formula.givens())
    }
    symbols = symbols_of(truth)
    return bool(symbols) and symbols <= computed
