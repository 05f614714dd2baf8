"""All reasons to break the graph or to leave a frame to eager Python, with their stable codes.

    raise DataDependentBranch(at=location, statement="if")

A graph break compiles the graph so far, runs one instruction in Python and continues in a resume function.
A skipped frame runs eager as a whole. `Raised` is not a user error: it carries an exception of the user's program.
"""

from __future__ import annotations

from typing import Any, Protocol, Self, final

from kiln.support.errors import KilnError
from kiln.support.location import Location
from kiln.support.records import dataclass


class BrokenFrame(Protocol):
    """A frame of a break, at the step in front of which it breaks."""

    @property
    def number(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def resumable(self) -> bool: ...
    def location(self) -> Location: ...


class GraphBreak(KilnError):
    """Base of all graph breaks. `frames` are the frames it passes through, innermost first."""

    def __init__(self, **details: Any) -> None:
        super().__init__(**details)
        self.frames: list[BrokenFrame] = []
        self.resumable = True

    @property
    def caller(self) -> Location | None:
        """For a break in a library, the line of the program that called it."""
        if self.at is None or not self.at.in_library:
            return None
        lines = (frame.location() for frame in self.frames)
        return next((line for line in lines if not line.in_library), None)

    @property
    def place(self) -> str:
        """Where it breaks, and for a library where that was called."""
        where = self.at.text() if self.at is not None else ""
        caller = self.caller
        return f"{where}, called from {caller.text()}" if caller is not None else where

    def explained(self) -> Self:
        """Itself, with the line of the program in its text: all frames are known now."""
        caller, text = self.caller, self.render()
        first, _, rest = text.partition("\n")
        self.args = (f"{first}, called from {caller.text()}\n{rest}" if caller is not None else text,)
        return self

    def before(self, step: BrokenFrame, at: Location | None = None) -> Self:
        """Break in front of an earlier step: the capture restarts and stops there. `at`: the line with the problem."""
        self.frames, self.resumable, self.at = [step], False, at or step.location()
        return self

    def of_recorded_call(self) -> Self:
        """Break in front of a call that is recorded already: the capture restarts and stops there."""
        self.resumable = False
        return self


class UnsupportedOpcode(GraphBreak):
    code = "KILN1001"
    what = "the instruction {opcode} is not supported"
    why = "{why}"
    try_ = ("move the statement out of the compiled function",)


class UnsupportedCall(GraphBreak):
    code = "KILN1002"
    what = "a call of `{function}` cannot be traced"
    why = "{why}"
    try_ = ("move the call out of the compiled function", "register the function as a custom op")


class UnsupportedAttribute(GraphBreak):
    code = "KILN1003"
    what = "the attribute `{name}` of a {type} cannot be traced"
    why = "{why}"
    try_ = ("read the attribute outside and pass its value",)


class UnsupportedOperation(GraphBreak):
    code = "KILN1004"
    what = "`{operation}` on a {type} cannot be traced"
    why = "{why}"
    try_ = ("use built-in containers and numbers",)


AS_CONSTANT = "use as a constant"
"""The operation of values that code needs as such."""


class NotConstant(UnsupportedOperation):
    """Something was needed as a plain value that is not known before the code runs."""

    what = "the value of a {type} is needed while tracing"
    try_ = ("read the value outside of the compiled function",)


class UnsupportedValue(GraphBreak):
    code = "KILN1005"
    what = "a {type} cannot be rebuilt after a graph break or as a result"
    why = "{why}"
    try_ = ("create it outside of the compiled function",)


class TorchCallFailed(GraphBreak):
    code = "KILN1006"
    what = "`{function}` cannot be traced"
    why = "{why}"
    try_ = ("{advice}",)

    def __init__(self, *, advice: str = "check the shapes and dtypes of its arguments", **details: object) -> None:
        super().__init__(advice=advice, **details)

    @classmethod
    def because_of(cls, function: str, error: Exception) -> Self:
        """An error of Kiln's gives its own reason and advice."""
        if isinstance(error, KilnError):
            return cls(function=function, why=error.reason, advice=error.hint or "leave the call to eager")
        return cls(function=function, why=f"{type(error).__name__}: {error}")


def as_raised(stop: GraphBreak) -> GraphBreak:
    """The break as the program catches it: of the class, too, of what torch has raised."""
    cause = stop.__cause__
    if isinstance(stop, TorchCallFailed) and isinstance(cause, RuntimeError | IndexError | TypeError | ValueError):
        kind = next(kind for kind in type(cause).__mro__ if kind.__module__ == "builtins")
        stop.__class__ = type(type(stop).__name__, (type(stop), kind), {"__module__": __name__})
    return stop


class DataDependentBranch(GraphBreak):
    code = "KILN1007"
    what = "`{statement}` depends on the value of a tensor"
    why = "while tracing, a tensor has a shape and a dtype but no values{sides}"
    try_ = (
        "keep both sides in the graph with `torch.where`",
        'with CUDA graphs, put both sides into the graph with the option `control_flow="graph"`',
        "move the test out of the compiled function",
    )

    def __init__(self, *, sides: str = "", **details: object) -> None:
        super().__init__(sides=sides, **details)

    def because(self, reason: str) -> Self:
        """With the reason why not both sides are in the graph."""
        if reason:
            self.details["sides"] = f", and its sides are not both in the graph: {reason}"
        return self


class DataDependentValue(GraphBreak):
    code = "KILN1008"
    what = "`{operation}` turns a tensor into a Python value"
    why = "while tracing, a tensor has a shape and a dtype but no values"
    try_ = ("keep the value as a tensor",)


class DisabledCall(GraphBreak):
    code = "KILN1009"
    what = "`{function}` is marked to run in Python"
    why = "it is decorated with `disable`"
    try_ = ("remove the decorator",)


class SideEffectCall(GraphBreak):
    code = "KILN1010"
    what = "`{function}` has an effect outside of the program"
    why = "{why}"
    try_ = ("move the call out of the compiled function",)


class NotResumable(GraphBreak):
    code = "KILN1012"
    what = "{reason}"
    why = "`{function}` cannot be resumed there"
    try_ = ("move the statement to the body of a plain function",)


class FrameInspection(GraphBreak):
    code = "KILN1013"
    what = "`{function}` inspects the frame that calls it"
    why = "compiled code does not run in the frame of the original function"
    try_ = ("pass what it reads as an argument", "move the call to a function that is not compiled")


class DebuggerCall(GraphBreak):
    code = "KILN1014"
    what = "`{function}` starts a debugger"
    why = "the rest of the function runs in Python, so that its lines can be stepped through"
    try_ = ("remove the call",)


class IteratorInPython(GraphBreak):
    code = "KILN1015"
    what = "the next item of a {type} is taken in Python"
    why = "the iterator lived over an earlier graph break, or was made outside of the compiled function"
    try_ = ("remove the other breaks in the body of the loop", "iterate over a list or a tuple")


class ItemInPython(GraphBreak):
    code = "KILN1016"
    what = "an item of a {type} is taken in Python"
    why = "its number or key was another one in each of several compiles"
    try_ = ("pass the item as an argument", "stack tensors into one, and index that")


@final
@dataclass(frozen=True)
class PastStep:
    """A step that was interpreted before, as the frame of a break."""

    number: int
    step: int
    at: Location
    resumable: bool = False

    def location(self) -> Location:
        return self.at


class SkippedFrame(KilnError):
    """Base of the reasons to run a whole frame eager."""


class SkippedCode(SkippedFrame):
    code = "KILN1101"
    what = "`{function}` runs eager"
    why = "{why}"
    try_ = ("move the code to be compiled to a plain function",)


class NotYet(KilnError):
    """Base of the reasons to run one call eager; later ones are compiled."""


class UninitialisedParameter(NotYet):
    code = "KILN1103"
    what = "this call runs eager: `{path}` has no shape yet"
    why = "a lazy module gives its parameters a shape in its first call; later calls are compiled"
    try_ = ("nothing, or call the module once before",)


class BucketsPending(NotYet):
    code = "KILN1105"
    what = "this call runs eager: a DistributedDataParallel module has not settled its buckets"
    why = "it does so with the other ranks after its first backward; later calls are compiled"
    try_ = ("nothing: it takes two steps",)


class RaisesException(SkippedFrame):
    code = "KILN1102"
    what = "`{function}` raises {exception}"
    why = "the exception leaves the compiled function"
    try_ = ("raise it outside of the compiled function",)


class Raised(Exception):
    """The user's program raises `value` here."""

    at: Location | None = None

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value
        self.lines: tuple[Location, ...] = ()
        """Where it was raised, innermost last."""
        self.linked = False
        """Its context is set: an exception that is raised again keeps it."""

    @property
    def reason(self) -> str:
        return f"it raises {self.value.type_name()}"

    def again(self) -> Self:
        """An exception that was raised before, and not by a `raise` that names it."""
        self.linked = True
        return self
