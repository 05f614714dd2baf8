"""Loggers: messages are logged after the region has run, in the order of the program.

    logger.warning("slow path for %s", name)     CallEffect(logger.warning, "slow path for %s", name)

Methods of a logger log and return None, except those in NO_MESSAGE, which are interpreted. Methods that a library adds
to the class (such as `warning_once`) are assumed to log.
"""

from __future__ import annotations

import logging
import types
from typing import final

from kiln.capture.interpreter.breaks import SideEffectCall
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Kwargs, Value, wraps
from kiln.capture.interpreter.effects import CallEffect
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.deferred_text import is_computed
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import is_fixed
from kiln.runtime.guards.source import Source

NO_MESSAGE = frozenset(
    (
        *("setLevel", "isEnabledFor", "getEffectiveLevel", "getChild", "getChildren", "addHandler", "removeHandler"),
        *("hasHandlers", "callHandlers", "handle", "makeRecord", "findCaller", "addFilter", "removeFilter", "filter"),
    )
)
"""Methods of `logging.Logger` that do not log."""


@final
class Logger(Object):
    """A logger from outside."""

    __slots__ = ()

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        found = s.classes.lookup(self.cls, name)
        if found is None or name.startswith("__") or name in NO_MESSAGE or not callable(found[1]):
            return super().get_attr(s, name, site)
        s.guard_type(self)
        s.hides_nothing(self, name)
        return LogMethod(self, name)


@final
class LogMethod(NamedMethod):
    """A method that logs, bound to its logger."""

    __slots__ = ()

    def python_type(self) -> type:
        return types.MethodType

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        for arg in (*args, *kwargs.values()):
            if not is_fixed(s, arg) and not is_computed(arg):
                why = f"a {arg.type_name()} may change before the message is written"
                raise SideEffectCall(function=f"Logger.{self.name}", why=why)
        s.effects.note(CallEffect(self, tuple(args), dict(kwargs)))
        return Constant(None)


@wraps(logging.Logger, subclasses=True)
def wrap_logger(s: CaptureState, real: logging.Logger, source: Source | None) -> Value:
    return s.identities.same_object(real, source, lambda: Logger(type(real), source, real))
