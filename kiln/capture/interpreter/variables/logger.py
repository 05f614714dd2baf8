"""Loggers: messages are logged after the region has run, in the order of the program.

    logger.warning("slow path for %s", name)     CallEffect(logger.warning, "slow path for %s", name)

Methods of a logger log and return None, except those in NO_MESSAGE, which are interpreted. Methods that a library adds
to the class (such as `warning_once`) are assumed to log.
"""

from __future__ import annotations

import logging
import types
from typing import cast, final

from kiln.capture.interpreter.breaks import SideEffectCall
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Kwargs, Value, handles, wraps
from kiln.capture.interpreter.effects import CallEffect
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.deferred_text import refuse_repeated, written
from kiln.capture.interpreter.variables.function import Function, inline
from kiln.capture.interpreter.variables.object import Object
from kiln.runtime.guards.source import AttrSource, ItemSource, ModuleGlobalSource, Source

NO_MESSAGE = frozenset(
    (
        *("setLevel", "isEnabledFor", "getEffectiveLevel", "getChild", "getChildren", "addHandler", "removeHandler"),
        *("hasHandlers", "callHandlers", "handle", "makeRecord", "findCaller", "addFilter", "removeFilter", "filter"),
    )
)
"""Methods of `logging.Logger` that do not log."""

NOW = ("exc_info", "stack_info")
"""Arguments that add to a message what is true when it is logged."""


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
    cls = types.MethodType

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        function = f"Logger.{self.name}"
        refuse_repeated(s, function)
        if self.name == "exception" or any(kwargs[name].truth(s) for name in NOW if name in kwargs):
            raise SideEffectCall(function=function, why="it logs the exception that is handled, or the stack")
        given = [kept(s, arg, function) for arg in args]
        named = {name: kept(s, arg, function) for name, arg in kwargs.items()}
        s.effects.note(CallEffect(self, tuple(given), named, message=True))
        return Constant(None)


def kept(s: CaptureState, value: Value, function: str) -> Value:
    """What stands for an argument of a message until it is written."""
    made = written(s, value)
    if made is None:
        raise SideEffectCall(function=function, why=f"a {value.type_name()} may change before the message is written")
    return made


@handles(logging.getLogger)
def get_logger(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """One that exists is guarded where the module keeps it; others are made by the function's own code."""
    name = args[0] if args else kwargs.get("name", Constant(None))
    cls = ModuleGlobalSource("logging", "Logger")
    if name.is_constant and not name.constant(s):
        return s.wrap(logging.root, AttrSource(cls, "root"))
    known = logging.Logger.manager.loggerDict.get(name.constant(s)) if name.is_constant else None
    if isinstance(known, logging.Logger):
        return s.wrap(known, ItemSource(AttrSource(AttrSource(cls, "manager"), "loggerDict"), known.name))
    return inline(s, cast(Function, s.wrap(logging.getLogger, None)), args, kwargs, NOT_RESUMABLE)


@wraps(logging.Logger, subclasses=True)
def wrap_logger(s: CaptureState, real: logging.Logger, source: Source | None) -> Value:
    return s.identities.same_object(real, source, lambda: Logger(type(real), source, real))
