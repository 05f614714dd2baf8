"""`print`: written behind the region, in the order of the program's other effects.

    print("step", n, loss)            CallEffect(print, "step", <n>, <text of loss>)
    print(*args, file=stream)         a stream of the frame or the program: its `write` is called here
    sys.stderr.write(text)            CallEffect(TextIOWrapper.write, sys.stderr, text)
    warnings.warn(text)               CallEffect(warn_explicit, text, ...), with the line of the program

What is printed is fixed when `print` is called: containers are copied, a tensor that is changed afterwards breaks the
graph at the call. The `__str__` of an object of the program is interpreted between what is written before and after it.
"""

from __future__ import annotations

import io
import sys
import types
import warnings
from collections.abc import Callable

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import SideEffectCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.data_values import is_needed
from kiln.capture.interpreter.effects import CallEffect, contents_key
from kiln.capture.interpreter.native_calls import natives
from kiln.capture.interpreter.torch_warnings import IGNORED_INSIDE, Line, line_of, running
from kiln.capture.interpreter.variables.builtin import Builtin
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.deferred_text import Deferred, refuse_repeated, written
from kiln.capture.interpreter.variables.function import Namespace, namespace
from kiln.capture.interpreter.variables.native_object import NativeObject
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.runtime.guards.source import Source
from kiln.runtime.warning import warn_in


@handles(print)
def print_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    refuse_repeated(s, "print")
    if is_needed(s):
        raise SideEffectCall(function="print", why="a tensor is changed after its text was printed")
    named = dict(kwargs)
    stream = named.pop("file", None)
    if s.is_none(stream):
        stream = replaced_output(s)
    if isinstance(stream, NativeObject):
        return natives(s).call(print, args, {**named, "file": stream})
    if stream is not None and not is_library_stream(s, stream):
        return s.wrap(polyfills.print_to, None).call(s, [stream, *args], named)
    if stream is not None:
        named["file"] = stream
    if not all(value is stream or value.is_constant or isinstance(value, Deferred) for value in named.values()):
        raise SideEffectCall(function="print", why="its separators are not known while tracing")
    separator = named.get("sep", Constant(" "))
    parts: list[Value] = []
    for arg in args:
        part = written(s, arg)
        if part is None:
            if parts:
                note(s, parts, {**named, "sep": separator, "end": separator})
                parts = []
            part = s.wrap(str, None).call(s, [arg], {})
        parts.append(part)
    note(s, parts, named)
    return Constant(None)


def note(s: CaptureState, parts: list[Value], named: Kwargs) -> None:
    s.effects.note(CallEffect(Builtin(print), tuple(parts), named, message=True))


def replaced_output(s: CaptureState) -> Value | None:
    """`sys.stdout`, if the frame has set it."""
    is_replaced = s.effects.find(("global", id(vars(sys)), "stdout")) is not None
    return namespace(s, vars(sys)).load(s, "stdout") if is_replaced else None


def ignored_inside(s: CaptureState, text: str | None, category: type[Warning], line: Line) -> bool:
    """Whether filters that the frame has set ignore a warning; False where it has set none.

    Raises:
        SideEffectCall: if they may not, or if it has set what shows warnings.
    """
    space = namespace(s, vars(warnings))
    filters = space.values.get("filters")
    shown_as_before = all([is_from_outside(s, space, name) for name in SHOWN_BY])
    same = not isinstance(filters, List) or is_from_outside(s, space, "filters")
    if shown_as_before and same and (filters is None or s.effects.find(contents_key(filters)) is None):
        return False
    if shown_as_before and isinstance(filters, List) and first_action(s, filters, text, category, line) == "ignore":
        return True
    raise SideEffectCall(function="warnings.warn", why="what becomes of the warning is not known while tracing")


IGNORED_INSIDE.append(ignored_inside)
SHOWN_BY = ("showwarning", "_showwarnmsg_impl", "_showwarnmsg")


def is_from_outside(s: CaptureState, space: Namespace, name: str) -> bool:
    value = space.values.get(name)
    return value is None or getattr(value, "original", None) is space.dictionary[name]


def first_action(s: CaptureState, filters: List, text: str | None, category: type[Warning], line: Line) -> str:
    """The action of the first filter that fits; "" where that is not known."""
    for item in filters.items(s):
        assert isinstance(item, Tuple)
        action, message, kind, module, number = item.items(s)
        if not issubclass(category, kind.constant(s)) or number.constant(s) not in (0, line.number):
            continue
        patterns = [(message.constant(s), text), (module.constant(s), line.module)]
        if any(pattern is not None and given is None for pattern, given in patterns):
            return ""
        if all(pattern is None or pattern.match(given) for pattern, given in patterns):
            return str(action.constant(s))
    return ""


def is_library_stream(s: CaptureState, stream: Value) -> bool:
    """Whether writing to a stream from outside runs no code of the program that may depend on the frame's effects."""
    source: Source | None = stream.source
    found = s.classes.lookup(stream.python_type(), "write")
    return source is not None and found is not None and not isinstance(found[1], types.FunctionType)


def writing(function: Callable[..., object]) -> None:
    """A method of text streams that writes; its result is the length of the text."""

    @handles(function)
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        stream = args[0]
        if isinstance(stream, NativeObject) or len(args) > 2:
            return natives(s).call(function, args, kwargs)
        text = written(s, args[1]) if len(args) == 2 else Constant(None)
        if is_needed(s) or text is None or not is_library_stream(s, stream):
            raise SideEffectCall(function=function.__qualname__, why="what is written is not known while tracing")
        if len(args) == 2 and text.python_type() is not str:
            raise SideEffectCall(function=function.__qualname__, why="it raises")
        refuse_repeated(s, function.__qualname__)
        written_to = (stream, text) if len(args) == 2 else (stream,)
        s.effects.note(CallEffect(Builtin(function), written_to, message=True))
        if isinstance(text, Deferred):
            return Deferred(text.made_at, text.step, len, [text], text.readings, int)
        return Constant(None if len(args) == 1 else len(text.constant(s)))


for _method in (io.TextIOWrapper.write, io.StringIO.write, io.TextIOWrapper.flush, io.StringIO.flush):
    writing(_method)


@handles(warnings.warn)
def warn(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """As `warnings.warn` does it, at the line of the frame that `stacklevel` names."""
    given = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False), **kwargs)
    message, category, level = given.pop("message"), given.pop("category", None), given.pop("stacklevel", Constant(1))
    number, frames = level.constant(s), running(s)
    outer = 0 if frames[-1].is_resumed else number - len(frames)
    frame = frames[max(number, 1) - 1] if number <= len(frames) else None
    text = written(s, message) if not is_needed(s) and message.python_type() is str else None
    kind = UserWarning if category is None or s.is_none(category) else category.constant(s)
    if given or text is None or not issubclass(kind, Warning) or not (frame or outer > 0):
        raise SideEffectCall(function="warnings.warn", why="what becomes of the warning is not known while tracing")
    refuse_repeated(s, "warnings.warn")
    line = line_of(frame) if frame is not None else Line("", 0, {})
    known = text.constant(s) if text.is_constant else None
    if ignored_inside(s, known, kind, line):
        return Constant(None)
    if s.policy.carries is None and not (s.policy.speculate and line.passes(s, known, kind)):  # an export leaves it out
        raise SideEffectCall(function="warnings.warn", why="a filter turns it into an error")
    if frame is None:  # a caller of the compiled function, found when it is given
        s.effects.note(CallEffect(Builtin(warnings.warn), (text, kind, outer + 1), message=True))
    else:
        warning = text, kind, line.file, line.number, line.namespace
        s.effects.note(CallEffect(s.wrap(warn_in, None), warning, message=True))
    return Constant(None)


@handles(warnings._filters_mutated)  # type: ignore[attr-defined]
def filters_mutated(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Python's memory of the filters is stale. Here `ignored_inside` asks them."""
    s.effects.note(CallEffect(Builtin(warnings._filters_mutated), ()))  # type: ignore[attr-defined]
    return Constant(None)


if sys.version_info >= (3, 14):  # the filters have a lock, which no other thread waits for while the frame is traced
    handles(warnings._filters_mutated_lock_held)(filters_mutated)
    handles(warnings._acquire_lock, warnings._release_lock)(lambda s, args, kwargs: Constant(None))
