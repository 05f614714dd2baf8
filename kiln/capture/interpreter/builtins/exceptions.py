"""Methods of exceptions, `sys.exc_info`, and exception groups."""

from __future__ import annotations

import sys
import traceback

import kiln.capture.interpreter.group_polyfills as group_polyfills
from kiln.capture.interpreter.builtins.polyfilled import interpreted
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.effects import CallEffect
from kiln.capture.interpreter.frame import current_exception, running_frame
from kiln.capture.interpreter.operations import printable
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.exception import BUILT_IN, Traceback, fill, nothing_handled_outside
from kiln.capture.interpreter.variables.object import Object, new_object
from kiln.capture.interpreter.variables.sequence import List, Tuple

NONE = Constant(None)


@handles(*(cls.__new__ for cls in BUILT_IN))
def exception_new(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    made = new_object(s, args[0].constant(s))
    fill(s, made, args[1:], kwargs, init=False)
    return made


@handles(*{cls.__init__ for cls in BUILT_IN})
def exception_init(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if not isinstance(value, Object) or value.original is not MISSING:
        raise value.unsupported("__init__", "it was made outside")
    fill(s, value, args[1:], kwargs, init=True)
    return NONE


@handles(*{cls.__repr__ for cls in BUILT_IN})
def exception_repr(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(repr(printable(s, args[0])))


@handles(*{cls.__str__ for cls in BUILT_IN} - {object.__str__})
def exception_text(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(str(printable(s, args[0])))


@handles(BaseException.with_traceback)
def with_traceback(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    error, trace = args
    error.set_attr(s, "__traceback__", trace)
    return error


@handles(BaseException.add_note)
def add_note(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    error, note = args
    if not issubclass(note.python_type(), str):
        raise s.error(TypeError, f"note must be a str, not '{note.type_name()}'")
    known = error.instance_attr(s, "__notes__") if isinstance(error, Object) else None
    if known is None:
        known = List([])
        error.set_attr(s, "__notes__", known)
    known.get_attr(s, "append").call(s, [note], {})
    return NONE


@handles(traceback.clear_frames)
def clear_frames(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Interpreted frames leave no traceback, so nothing in it keeps variables alive."""
    if not isinstance(args[0], Traceback):
        s.effects.note(CallEffect(s.wrap(traceback.clear_frames, None), tuple(args)))
    return NONE


@handles(sys.exc_info)
def exc_info(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    error = handled_now(s)
    if error is None:
        return Tuple([NONE, NONE, NONE])
    return Tuple([s.wrap(error.python_type(), None), error, error.get_attr(s, "__traceback__")])


@handles(sys.exception)
def exception(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return handled_now(s) or NONE


def handled_now(s: CaptureState) -> Value | None:
    """The exception that the program handles; a guard says that the caller of the compiled function handles none."""
    error = current_exception(running_frame(s))
    if error is None:
        nothing_handled_outside(s)
    return error


for _name in ("derive", "split", "subgroup"):
    handles(getattr(BaseExceptionGroup, _name))(interpreted(getattr(group_polyfills, _name)))
