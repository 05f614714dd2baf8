"""Objects with a finalizer that a resume function drops: its caller holds them until it returns, eager frees them.

noisy = Noisy(log)
opaque(noisy)                  a break: `noisy` is an argument of what follows
del noisy                      eager calls `noisy.__del__` here
log.append("after")            so the graph breaks again, in front of what could see that
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.breaks import GraphBreak, PastStep, UnsupportedCall
from kiln.capture.interpreter.core import Value
from kiln.capture.interpreter.frame import OPCODES, SymbolicFrame, dropped_arguments


@final
class BreakBehind(Exception):
    """The capture is to begin again and to break in front of `step`."""

    def __init__(self, step: PastStep, stop: GraphBreak) -> None:
        super().__init__(str(stop))
        self.step = step
        self.stop = stop


FARTHEST = 1000
"""How many instructions behind the one that drops the object are looked at."""


def break_behind(frame: SymbolicFrame, old: Value) -> None:
    """If the current instruction drops `old`, a variable, and with it an object of which `__del__` is to be called,
    break in front of the next instruction that can be resumed."""
    cls = old.python_type()
    if old.source is None or not hasattr(cls, "__del__") or all(old is not value for value in dropped_arguments(frame)):
        return
    step = next_resumable(frame)
    if step is not None and (frame.number, step) not in frame.state.stops:
        why = "it is called where the program drops the object, which the caller of a resume function holds"
        stop = UnsupportedCall(function=f"{cls.__qualname__}.__del__", why=why)
        raise BreakBehind(PastStep(frame.number, step, frame.location()), stop)


def next_resumable(frame: SymbolicFrame) -> int | None:
    """The number of the next step at which the graph can break; None where the function returns before."""
    at = frame.at + 1
    for step in range(frame.step + 1, frame.step + FARTHEST):
        inst = frame.decoded.instruction(at)
        if inst.name.startswith("RETURN_") or inst.name not in OPCODES:
            return None
        if OPCODES[inst.name].pops is not None:
            return step
        at = inst.arg if inst.name.startswith("JUMP_") else at + 1
    return None
