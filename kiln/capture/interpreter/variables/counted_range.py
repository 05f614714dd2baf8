"""Ranges whose loop a graph break leaves: what is asked of a number that bounds one is that there is another turn.

def f(x, n):
    for i in range(n):          guards: 0 < n, or `n == 3` if all turns were interpreted
        if x.sum() < i:         the graph breaks in the first turn; the iterator goes on in the resume function
            return x

The capture begins again as soon as an attempt breaks in such a loop, which has fixed the number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from types import CodeType
from typing import cast, final

from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Codegen, Value, will_change
from kiln.capture.interpreter.data_values import Instruction
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.support.records import dataclass


class LoopsLeft(Exception):
    """The graph breaks in loops over ranges, made at these instructions, that have fixed numbers from outside."""

    codes: frozenset[CodeType] = frozenset()

    def __init__(self, made_at: frozenset[Instruction]) -> None:
        super().__init__(made_at)
        self.made_at = made_at


@final
@dataclass
class Loops:
    """The loops over ranges of numbers from outside."""

    counted: frozenset[Instruction] = frozenset()
    """Where the ranges are made that a graph break leaves, as earlier attempts found."""
    fixed: dict[int, tuple[Value, Instruction]] = field(default_factory=dict)
    """Other ranges, then their iterators, by identity."""

    def iterate(self, over: Value, iterator: Value) -> None:
        found = self.fixed.get(id(over))
        if found is not None:
            self.fixed[id(iterator)] = iterator, found[1]


def counted_range(s: CaptureState, args: Args) -> Value | None:
    """The range that the current instruction makes for a loop; None if its numbers are to be fixed."""
    frame = running_frame(s)
    if (frame.code, frame.at) not in s.part(Loops).counted:
        return None
    end = args[min(len(args) - 1, 1)]
    others = [arg.real() for arg in args if arg is not end]
    if not (isinstance(end, Symbolic) and end.python_type() is int and end.node.node.has_hint()):
        return None
    if len(others) < len(args) - 1 or not all([type(number) is int for number in others]):
        return None
    start, step = cast(list[int], [*others, *(0, 1)[len(others) :]])
    return CountedRange(start, end, step) if step else None


def note_fixed(s: CaptureState, made: Value, args: Args) -> None:
    """The current instruction has made a range of numbers that are fixed now, maybe for a loop."""
    frame = running_frame(s)
    if any([isinstance(arg, Symbolic) for arg in args]) and frame.decoded.instruction(frame.at + 1).name == "GET_ITER":
        s.part(Loops).fixed[id(made)] = made, (frame.code, frame.at)


def loops_left(s: CaptureState, frames: Iterable[object]) -> LoopsLeft | None:
    """Whether a break leaves loops that have fixed a number without need."""
    fixed, found = s.part(Loops).fixed, set[Instruction]()
    for frame in frames if fixed else ():
        if isinstance(frame, SymbolicFrame):
            found.update(fixed[id(value)][1] for value in (*frame.saved, *frame.stack) if id(value) in fixed)
    new = found - s.part(Loops).counted
    return LoopsLeft(frozenset(new)) if new else None


def may_be_counted(s: CaptureState, iterator: Value) -> bool:
    """Whether it goes through a range that has fixed a number, and its loop may be one of the graph for all numbers."""
    found = s.part(Loops).fixed.get(id(iterator))
    return found is not None and loop_of(found[1]) not in s.needed


def loop_of(made_at: Instruction) -> Instruction:
    """The head of the loop over the range that is made there: behind it stands GET_ITER, then FOR_ITER."""
    return made_at[0], made_at[1] + 2


@final
class CountedRange(Value):
    """A `range` of a loop, and its iterator: the numbers from `start` on, up to `end`."""

    __slots__ = ("end", "start", "step")

    def __init__(self, start: int, end: Symbolic, step: int) -> None:
        self.start, self.end, self.step = start, end, step

    @property
    def position(self) -> tuple[int, ...]:
        return (self.start,)

    @position.setter
    def position(self, position: tuple[int, ...]) -> None:
        (self.start,) = position

    def python_type(self) -> type:
        return type(iter(range(0)))

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def next(self, s: CaptureState) -> Value | None:
        end = self.end.node
        if not s.wrap(self.start < end if self.step > 0 else self.start > end, None).truth(s):
            self.end.constant(s)
            return None
        will_change(s, self)
        self.start += self.step
        return s.const(self.start - self.step)

    def emit(self, g: Codegen) -> None:
        g.make(self, iterated, g.state.const(self.start), self.end, g.state.const(self.step))


def iterated(start: int, end: int, step: int) -> object:
    """Called by transformed code."""
    return iter(range(start, end, step))
