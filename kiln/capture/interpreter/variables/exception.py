"""Exceptions made in the frame: the fields of built-in classes, context and cause, and the code that makes them again.

    StopIteration(x).value           x: what the class written in C keeps of its arguments
    raise B  (in `except A`)         B.__context__ is A
    raise B from A                   B.__cause__ is A, B.__suppress_context__ is True

The fields lie among the attributes of the object, since their descriptors come before the instance's dict.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Protocol, final

from kiln.capture.interpreter.breaks import Raised, SkippedCode, UnsupportedCall, UnsupportedValue
from kiln.capture.interpreter.core import (
    MISSING,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Value,
)
from kiln.capture.interpreter.effects import emit_attribute
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import Sequence, Tuple, all_items, is_fixed
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import HEAP_TYPE
from kiln.runtime.guards.source import CallSource, ModuleGlobalSource
from kiln.runtime.tracebacks import traceback_of
from kiln.support.errors import KilnError
from kiln.support.location import Location
from kiln.support.records import dataclass

FIELD_TYPES = (types.GetSetDescriptorType, types.MemberDescriptorType)
LINKS = ("__cause__", "__context__")
FLAG = "__suppress_context__"
OWN_FIELDS = frozenset((*LINKS, FLAG, "__traceback__", "args"))
"""The fields of BaseException."""
GROUPS = (BaseExceptionGroup, ExceptionGroup)
BUILT_IN: tuple[type[BaseException], ...] = tuple(
    cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, BaseException)
)
HANDLED_OUTSIDE = CallSource(ModuleGlobalSource("sys", "exception"), ())
"""What the caller of the compiled function handles."""


class ExceptionValue(Protocol):
    """An `Object` whose class is an exception."""

    cls: type
    attrs: dict[str, Value | None]


@final
class Unknown:
    """Stands for an argument whose value is not known while tracing."""

    def __init__(self, value: Value) -> None:
        self.value = value


@final
@dataclass(frozen=True, slots=True, eq=False)
class Traceback(Value):
    """The traceback of an exception: lines of the program, the outermost first, without its frames."""

    lines: tuple[Location, ...] = ()
    cls = types.TracebackType

    why = "interpreted frames leave no traceback"

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        """Python runs the frame from its beginning, so that there is a traceback."""
        assert s.frame is not None
        raise SkippedCode(function=s.frame.location().function, why=f"it reads `{name}` of a traceback: {self.why}")

    def emit(self, g: Codegen) -> None:
        if not self.lines:
            raise UnsupportedValue(type="traceback", why=self.why)
        g.make(self, traceback_of, tuple((line.file, line.line, line.function) for line in self.lines))


def native_class(cls: type) -> type[BaseException]:
    """The class written in C from which an exception class derives."""
    return next(base for base in cls.__mro__ if not base.__flags__ & HEAP_TYPE and issubclass(base, BaseException))


def is_field(raw: object) -> bool:
    """Whether an attribute of an exception class is what a class written in C keeps."""
    owner = getattr(raw, "__objclass__", None)
    return isinstance(raw, FIELD_TYPES) and isinstance(owner, type) and owner in BUILT_IN


def fields_of(native: type[BaseException]) -> list[str]:
    """The fields that a built-in class has besides those of BaseException."""
    found = [base for base in native.__mro__ if issubclass(base, BaseException) and base is not BaseException]
    return [name for base in found for name, raw in vars(base).items() if isinstance(raw, FIELD_TYPES)]


def fill(s: CaptureState, made: ExceptionValue, args: Args, kwargs: Kwargs, init: bool) -> None:
    """The fields after `native.__new__(cls, *args)` and, with `init`, `native.__init__(self, *args)`."""
    made.attrs["args"] = Tuple(list(args))
    native = native_class(made.cls)
    if native in GROUPS:
        fill_group(s, made, args)
        return
    names = fields_of(native)
    if not names and not kwargs:
        return
    real = real_exception(s, native, args, kwargs, init)
    if type(real) is not native and made.cls is native:
        made.cls = type(real)  # OSError(2, "...") is a FileNotFoundError
    if len(real.args) != len(args):
        made.attrs["args"] = Tuple(list(args[: len(real.args)]))
    for name in names:
        try:
            made.attrs[name] = known(s, getattr(real, name))
        except AttributeError:
            made.attrs.pop(name, None)


def known(s: CaptureState, real: object) -> Value:
    return real.value if isinstance(real, Unknown) else s.wrap(real, None)


def real_exception(
    s: CaptureState, native: type[BaseException], args: Args, kwargs: Kwargs, init: bool
) -> BaseException:
    """An exception of the built-in class, with stand-ins for what is not known."""
    plain = [item.constant(s) if is_fixed(s, item) else Unknown(item) for item in args]
    named = {name: item.constant(s) if is_fixed(s, item) else Unknown(item) for name, item in kwargs.items()}
    try:
        made: BaseException = native.__new__(native, *plain, **(named if init else {}))
        if init:
            made.__init__(*plain, **named)  # type: ignore[misc]
    except (TypeError, ValueError) as error:
        if any(isinstance(item, Unknown) for item in (*plain, *named.values())):
            raise UnsupportedCall(function=native.__name__, why="an argument is not known while tracing") from None
        raise s.error(type(error), *error.args) from None
    return made


def fill_group(s: CaptureState, made: ExceptionValue, args: Args) -> None:
    """The fields of an ExceptionGroup, checked as Python does."""
    if len(args) != 2:
        found = "BaseExceptionGroup.__new__() takes exactly 2 arguments"
        raise s.error(TypeError, f"{found} ({len(args)} given)")
    message, members = args
    if message.python_type() is not str:
        raise s.error(TypeError, f"argument 1 must be str, not {message.type_name()}")
    if not isinstance(members, Sequence):
        raise s.error(TypeError, "second argument (exceptions) must be a sequence")
    inner = list(members.items(s))
    if not inner:
        raise s.error(ValueError, "second argument (exceptions) must be a non-empty sequence")
    for number, item in enumerate(inner):
        if not issubclass(item.python_type(), BaseException):
            raise s.error(ValueError, f"Item {number} of second argument (exceptions) is not an exception")
    plain = all(issubclass(item.python_type(), Exception) for item in inner)
    if made.cls is BaseExceptionGroup and plain:
        made.cls = ExceptionGroup
    elif not plain and issubclass(made.cls, Exception):
        where = "an ExceptionGroup" if made.cls is ExceptionGroup else f"'{made.cls.__name__}'"
        raise s.error(TypeError, f"Cannot nest BaseExceptions in {where}")
    made.attrs["message"], made.attrs["exceptions"] = message, Tuple(inner)


def field_of(s: CaptureState, value: ExceptionValue, name: str) -> Value | None:
    """A field of an exception made here; None: it raises AttributeError."""
    found = value.attrs.get(name)
    if found is not None:
        return found
    if name == "__context__" and "__traceback__" in value.attrs:
        nothing_handled_outside(s)
    if name in (*LINKS, "__traceback__"):
        return Constant(None)
    return Constant(False) if name == FLAG else None


def nothing_handled_outside(s: CaptureState) -> None:
    """Guard that the caller of the compiled function handles no exception; if it does, Python has to look."""
    handled = sys.exception()
    if handled is not None and not isinstance(handled, Raised | KilnError):
        raise UnsupportedCall(function="sys.exception", why="the caller of the compiled function handles an exception")
    s.guard(HANDLED_OUTSIDE, GuardKind.IS_NONE)


def set_field(s: CaptureState, value: ExceptionValue, name: str, new: Value) -> None:
    """Check and convert what is assigned as Python does; the caller writes `attrs`."""
    if name in ("message", "exceptions") and native_class(value.cls) in GROUPS:
        raise s.error(AttributeError, "readonly attribute")
    if name in LINKS:
        what = name.strip("_")
        if not issubclass(new.python_type(), BaseException | None):
            raise s.error(TypeError, f"exception {what} must be None or derive from BaseException")
        if name == "__cause__":
            value.attrs[FLAG] = Constant(True)
    if name == "__traceback__" and not issubclass(new.python_type(), types.TracebackType | None):
        raise s.error(TypeError, "__traceback__ must be a traceback or None")


def converted(s: CaptureState, name: str, new: Value) -> Value:
    return Tuple(all_items(s, new)) if name == "args" and not isinstance(new, Tuple) else new


def link(s: CaptureState, raised: Raised, handled: Value | None) -> None:
    """Set the context of an exception that is raised while `handled` is handled."""
    value = raised.value
    if value.real() is MISSING:
        value.attrs["__traceback__"] = Traceback()
    if raised.linked:
        return
    raised.linked = True
    if handled is None or handled is value:
        return
    other = handled
    seen = {id(other)}
    while (before := context_of(other)) is not None and id(before) not in seen:
        if before is value:  # no cycle
            other.set_attr(s, "__context__", Constant(None))
            break
        seen.add(id(before))
        other = before
    value.set_attr(s, "__context__", handled)


def lines_of(raised: Raised, here: tuple[Location, ...]) -> tuple[Location, ...]:
    """Where an exception was raised; one that is raised again keeps the lines from the handler on."""
    attrs: dict[str, Value | None] = getattr(raised.value, "attrs", {})
    held = attrs.get("__traceback__")
    return (*here[:-1], *held.lines) if raised.linked and isinstance(held, Traceback) and held.lines else here


def caught(raised: Raised, depth: int) -> None:
    """An exception made here is caught in the frame at `depth`: its traceback begins there."""
    if raised.value.real() is MISSING:
        raised.value.attrs["__traceback__"] = Traceback(raised.lines[depth:])


def context_of(value: Value) -> Value | None:
    """The context of an exception, if it is known here."""
    attrs: dict[str, Value | None] = getattr(value, "attrs", {})
    found = attrs.get("__context__")
    return found if found is not None and not found.is_constant else None


def emit_exception(value: ExceptionValue, itself: Value, g: Codegen) -> None:
    """Made by the constructor written in C: the program's own `__init__` has run while tracing."""
    native = native_class(value.cls)
    args = value.attrs.get("args")
    items = args.items(g.state) if isinstance(args, Sequence) else []
    g.make(itself, native.__new__, g.state.classes.written(value.cls), *items)
    fields = () if native in GROUPS else fields_of(native)
    for name, held in value.attrs.items():
        if held is None or name in OWN_FIELDS or (native in GROUPS and name in ("message", "exceptions")):
            continue
        if name not in fields or not g.state.is_none(held):
            emit_attribute(g, value.cls, name, held)
    if "__context__" not in value.attrs and "__traceback__" in value.attrs:
        g.make(None, sys.exception)
        g.body.op("COPY", 2).op("STORE_ATTR", "__context__")
    for name in (*LINKS, FLAG, "__traceback__"):
        held = value.attrs.get(name)
        if held is not None and not (isinstance(held, Traceback) and not held.lines):
            g.emit(held)
            g.body.op("COPY", 2).op("STORE_ATTR", name)
