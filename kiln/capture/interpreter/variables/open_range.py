"""Ranges of which several lengths were compiled: the items are taken in Python, so that one variant serves all.

def f(x, n):
    for i in range(n):        a variant for each of the first values of `n`
        x = layer(x, i)       then one that breaks the graph here, and whose body gets `i` as an input
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.breaks import IteratorInPython
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Codegen, Value


@final
class OpenRange(Value):
    """`range(...)` of numbers that are not read while tracing."""

    __slots__ = ("args",)

    def __init__(self, args: Args) -> None:
        self.args = args

    def python_type(self) -> type:
        return range

    def length(self, s: CaptureState) -> int:
        return len(self.constant(s))

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return OpenRangeIterator(self)

    def emit(self, g: Codegen) -> None:
        g.make(self, range, *self.args)


@final
class OpenRangeIterator(Value):
    __slots__ = ("over",)

    def __init__(self, over: OpenRange) -> None:
        self.over = over

    def python_type(self) -> type:
        return type(iter(range(0)))

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def next(self, s: CaptureState) -> Value | None:
        raise IteratorInPython(type=self.type_name())

    def emit(self, g: Codegen) -> None:
        g.make(self, iter, self.over)
