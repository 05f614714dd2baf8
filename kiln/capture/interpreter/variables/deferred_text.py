"""The text of a tensor or of a symbolic number in an f-string, which is made only if the program uses it.

    check(n == m, f"{n} tokens, {m} features")       the text is for an error that is not raised
    self.log.append("step %d" % n)                   transformed code makes the text: no number is fixed

While nothing reads the text, the call stays in the graph and no size is fixed. Where something does, the capture begins
again, and makes the text where the program does. A text of numbers from outside is not read where it is only kept:
transformed code makes it of the numbers of each call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import final

from kiln.capture.interpreter.breaks import PastStep
from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Codegen, Token, Value
from kiln.capture.interpreter.data_values import Instruction, ValueNeeded, is_needed, past_step
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Symbolic, Tensor, replaced

CONVERTERS: dict[str, Callable[[object], str]] = {"s": str, "r": repr, "a": ascii}


@final
class DeferredText(Value):
    """`make(*args)`, a string whose characters are not known; `made_at` is where they would be."""

    __slots__ = ("args", "made_at", "make", "step")

    def __init__(
        self,
        made_at: Instruction,
        step: PastStep,
        make: Callable[..., object] | None = None,
        args: Sequence[Value] = (),
    ) -> None:
        self.made_at = made_at
        self.step = step
        self.make = make
        """None where values of tensors decide the text, or something else that transformed code does not know."""
        self.args = args
        self.source = None

    def python_type(self) -> type:
        return str

    def needed(self) -> ValueNeeded:
        return ValueNeeded(self.made_at, self.step)

    def constant(self, s: CaptureState) -> object:
        raise self.needed()

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        raise self.needed()

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        raise self.needed()

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        raise self.needed()

    def length(self, s: CaptureState) -> int:
        raise self.needed()

    def truth(self, s: CaptureState) -> bool:
        raise self.needed()

    def key(self, s: CaptureState) -> Token:
        raise self.needed()

    def emit(self, g: Codegen) -> None:
        if self.make is None:
            raise self.needed()
        g.make(self, self.make, *self.args)


def deferred_text(s: CaptureState, value: Value, conversion: str = "", spec: str = "") -> DeferredText | None:
    """The text of a value that is not known while tracing; None where it is, or where Python needs it."""
    if isinstance(value, Symbolic):
        made: Value | None = value
        if conversion:
            made = text_of(s, CONVERTERS[conversion], [value])
        return None if made is None else text_of(s, format, [made, s.const(spec)])
    printed = isinstance(value, Tensor) and not replaced(s, value, "__format__") and not replaced(s, value, "__repr__")
    if not printed or is_needed(s):
        return None
    frame = running_frame(s)
    return DeferredText((frame.code, frame.at), past_step(frame))


def text_of(s: CaptureState, make: Callable[..., object], args: Sequence[Value]) -> DeferredText | None:
    """`make(*args)`, if symbolic numbers or deferred texts among the arguments (or in a tuple of them) decide it, and
    all else is constant; None where Python needs the text, or it is not that of a string."""
    parts = [part for arg in args for part in (arg.items(s) if type(arg) is Tuple else [arg])]
    deferred = [part for part in parts if isinstance(part, DeferredText)]
    numbers = [part for part in parts if isinstance(part, Symbolic)]
    if not (deferred or numbers) or is_needed(s):
        return None
    if not all(part.is_constant or isinstance(part, Symbolic | DeferredText) for part in parts):
        return None
    frame = running_frame(s)
    at = (frame.code, frame.at), past_step(frame)
    unknown = next((part for part in deferred if part.make is None), None)
    if unknown is not None:
        return unknown
    if not all(number.node.node.has_hint() for number in numbers):
        return DeferredText(*at)
    try:
        known = make(*[hinted(s, arg) for arg in args])
    except Exception:  # which the program sees where it makes the text
        return None
    return DeferredText(*at, make, args) if type(known) is str else None


def hinted(s: CaptureState, value: Value) -> object:
    """A value that makes a text of the same form as that of the call: whether that raises is the same in all calls."""
    if isinstance(value, DeferredText):
        assert value.make is not None
        return value.make(*[hinted(s, arg) for arg in value.args])
    if type(value) is Tuple:
        return tuple([hinted(s, item) for item in value.items(s)])
    return value.node.node.hint if isinstance(value, Symbolic) else value.constant(s)


def joined(s: CaptureState, function: Callable[..., object], left: Value, right: Value) -> DeferredText | None:
    """`left + right` and `left % right` where one is the text of a number, or the text has one."""
    if function not in (operator.add, operator.mod):
        return None
    if not issubclass(left.python_type(), str) or (left.is_constant and type(left.real()) is not str):
        return None
    return text_of(s, function, [left, right])


def is_computed(value: Value) -> bool:
    """Whether transformed code computes it from the numbers of each call: a number, or the text of one."""
    if isinstance(value, Symbolic):
        return bool(value.node.node.has_hint())
    return isinstance(value, DeferredText) and value.make is not None
