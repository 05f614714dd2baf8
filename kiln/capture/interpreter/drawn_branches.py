"""Jumps on numbers that the program has drawn: the graph chooses between the sides.

    for t in range(n):                              compares drawn numbers in front of the region, and takes them
        y = cell(y, x[t] if random.random() < 0.5   =>   y = cell(y, cond(drawn < 0.5, x[t], y.detach()))
                    else y.detach())

A guard on each comparison would cost a variant for each way through the draws. The first jump of a capture is guarded:
a program with one has two variants, each of which computes its side only.
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.data_values import GUARDED
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.if_conversion import relation_in_region, take_both_sides
from kiln.capture.interpreter.number_branches import NumberBranches, symbols_of
from kiln.capture.interpreter.speculation import ComputedNumber, Speculations
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.support.records import dataclass
from kiln.symbolic.expr import Symbol
from kiln.symbolic.relation import Relation


@final
@dataclass
class DrawnBranches:
    """How many jumps of one capture were on drawn numbers."""

    jumps: int = 0


def take_both_draws(frame: SymbolicFrame, condition: Symbolic, targets: tuple[int, int]) -> bool:
    """`take_both_sides` if drawn numbers decide the jump, and it is not the first one; False: its truth is guarded."""
    s = frame.state
    if s.needed.get((frame.code, frame.at), GUARDED) != GUARDED or s.part(NumberBranches).depth:
        return False
    if not is_drawn(s, condition):
        return False
    found = s.part(DrawnBranches)
    found.jumps += 1
    if found.jumps == 1:
        return False
    truth = condition.node.node._truth()
    return take_both_sides(frame, relation_in_region(frame, truth), targets)


def is_drawn(s: CaptureState, condition: Value) -> bool:
    """Whether the truth depends on drawn numbers alone."""
    if not isinstance(condition, Symbolic) or condition.python_type() is float:
        return False
    truth = condition.node.node._truth()
    return isinstance(truth, Relation) and bool(symbols_of(truth)) and symbols_of(truth) <= drawn_symbols(s)


def drawn_symbols(s: CaptureState) -> set[Symbol]:
    """The numbers computed in front of the region from what was drawn."""
    drawn = [record.given for record in s.recorder.inputs if record.is_drawn and record.given is not None]
    return {
        number.node.value
        for made, number in s.part(Speculations).numbers.items()
        if isinstance(made, ComputedNumber) and number is not None and any(g in drawn for g in made.formula.givens())
    }
