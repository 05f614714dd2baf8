"""The text of a tensor or of a symbolic number in an f-string, which is made only if the program uses it.

    check(n == m, f"{n} tokens, {m} features")       the text is for an error that is not raised

While nothing reads the text, the call stays in the graph and no size is fixed. Where something does, the capture begins
again, and makes the text where the program does.
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.breaks import PastStep
from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Codegen, Token, Value
from kiln.capture.interpreter.data_values import Instruction, ValueNeeded, is_needed, past_step
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.variables.tensor import Symbolic, Tensor, replaced


@final
class DeferredText(Value):
    """A string whose characters are not known; `made_at` is where they would be."""

    __slots__ = ("made_at", "step")

    def __init__(self, made_at: Instruction, step: PastStep) -> None:
        self.made_at = made_at
        self.step = step
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
        raise self.needed()


def deferred_text(s: CaptureState, value: Value) -> DeferredText | None:
    """The text of a value that is not known while tracing; None where it is, or where Python needs it."""
    printed = isinstance(value, Tensor) and not replaced(s, value, "__format__") and not replaced(s, value, "__repr__")
    if not printed and not isinstance(value, Symbolic):
        return None
    if is_needed(s):
        return None
    frame = running_frame(s)
    return DeferredText((frame.code, frame.at), past_step(frame))
