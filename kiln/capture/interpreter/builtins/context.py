"""Context variables: a `set` in the frame is undone by a `reset` in the frame, or becomes a side effect.

token = VAR.set(x)        the transformed code sets it only if a break or the end comes before the reset
VAR.get()                 the value set in the frame; else the one from before it, which the guards ask for again
VAR.reset(token)
copy_context().run(f)     `f` is interpreted; what it sets is set in the copy
"""

from __future__ import annotations

import contextvars
from collections.abc import Hashable
from typing import final

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Codegen, Kwargs, Value, handles
from kiln.capture.interpreter.effects import CallEffect, SideEffect
from kiln.capture.interpreter.variables.builtin import Builtin
from kiln.capture.interpreter.variables.constant import Constant
from kiln.runtime.guards.constant import reference
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import CALL, CallSource
from kiln.support.records import dataclass

UNSET = "<no value of the context variable>"
"""What guards take as the default of a variable."""

GET = reference(contextvars.ContextVar.get)


@final
@dataclass(frozen=True, eq=False)
class MadeVariable(Value):
    """A context variable that the frame makes."""

    name: Value
    default: Value | None
    cls = contextvars.ContextVar

    def get_attr(self, s: CaptureState, name: str, site: object = None) -> Value:
        return self.name if name == "name" else super().get_attr(s, name)

    def key(self, s: CaptureState) -> Hashable:
        return self

    def emit(self, g: Codegen) -> None:
        given = [] if self.default is None else [self.default]
        g.make(self, contextvars.ContextVar, self.name, *given, names=("default",) * len(given))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ContextToken(Value):
    """The result of `set`; building it calls `set`."""

    variable: Value
    content: Value
    before: ContextToken | None
    cls = contextvars.Token

    def emit(self, g: Codegen) -> None:
        if self.before is not None:
            g.emit(self.before)
            g.body.op("POP_TOP")
        g.make(self, contextvars.ContextVar.set, self.variable, self.content)


@final
@dataclass(frozen=True)
class ContextEffect(SideEffect):
    """The variable stays set."""

    token: ContextToken
    lasting = False

    @property
    def key(self) -> Hashable:
        return context_key(self.token.variable)

    def emit(self, g: Codegen) -> None:
        g.emit(self.token)
        g.body.op("POP_TOP")


def context_key(variable: Value) -> Hashable:
    real = variable.real()
    return "context", id(variable if real is MISSING else real)


def current(s: CaptureState, variable: Value) -> ContextToken | None:
    effect = s.effects.find(context_key(variable))
    return effect.token if isinstance(effect, ContextEffect) else None


def variable_of(s: CaptureState, args: Args) -> Value:
    s.counters.unguarded += 1
    variable = args[0]
    if variable.source is not None:
        s.guard(variable.source, GuardKind.IS, s.reference(variable.real()))
    return variable


@handles(contextvars.ContextVar)
def make_variable(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    (name,) = args
    if not issubclass(name.python_type(), str):
        raise s.error(TypeError, "context variable name must be a str")
    return MadeVariable(name, kwargs.get("default"))


@handles(contextvars.ContextVar.set)
def set_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    variable = variable_of(s, args)
    token = ContextToken(variable, args[1], current(s, variable))
    s.effects.replace(ContextEffect(token))
    return token


@handles(contextvars.ContextVar.get)
def get(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    variable = variable_of(s, args)
    token = current(s, variable)
    if token is not None:
        return token.content
    made = isinstance(variable, MadeVariable)
    if not made and (found := value_before(s, variable)) is not None:
        return found
    if len(args) > 1:
        return args[1]
    default = variable.default if isinstance(variable, MadeVariable) else default_of(s, variable)
    if default is None:
        raise s.error(LookupError, variable)
    return default


def value_before(s: CaptureState, variable: Value) -> Value | None:
    """The value from before the frame; None if it has none."""
    real = variable.real()
    assert isinstance(real, contextvars.ContextVar)
    if variable.source is None:
        raise UnsupportedCall(function="ContextVar.get", why="no path leads to the variable")
    source = CallSource(CALL, (GET, s.reference(real), UNSET))
    found = real.get(UNSET)
    if type(found) is str and found == UNSET:
        s.guard(source, GuardKind.EQUALS, UNSET)
        return None
    return s.wrap(found, source)


def default_of(s: CaptureState, variable: Value) -> Value | None:
    """The default of a variable that has no value."""
    real = variable.real()
    assert isinstance(real, contextvars.ContextVar) and variable.source is not None
    try:
        return s.wrap(real.get(), CallSource(CALL, (GET, s.reference(real))))
    except LookupError:
        return None


@handles(contextvars.ContextVar.reset)
def reset(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    variable, token = variable_of(s, args), args[1]
    if isinstance(token.real(), contextvars.Token) and current(s, variable) is None:
        # A token from before the frame (in a resume function): the reset is made at the end.
        s.effects.note(CallEffect(Builtin(contextvars.ContextVar.reset), (args[0], token)))
        return Constant(None)
    if not isinstance(token, ContextToken) or current(s, variable) is not token:
        raise UnsupportedCall(function="ContextVar.reset", why="the token is not the last that was made in the frame")
    if token.before is None:
        s.effects.drop(context_key(variable))
    else:
        s.effects.replace(ContextEffect(token.before))
    return Constant(None)


@final
@dataclass(eq=False)
class CopiedContext(Value):
    """`copy_context()`: what the frame has set until then, and what is set in it."""

    values: dict[Hashable, ContextEffect]
    cls = contextvars.Context

    def truth(self, s: CaptureState) -> bool:
        raise self.unsupported("bool", "how many variables are set is not known")


@handles(contextvars.copy_context)
def copy_context(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return CopiedContext(set_here(s))


def set_here(s: CaptureState) -> dict[Hashable, ContextEffect]:
    return {effect.key: effect for effect in s.effects if isinstance(effect, ContextEffect)}


@handles(contextvars.Context.run)
def run(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    context, function, *rest = args
    if not isinstance(context, CopiedContext):
        raise UnsupportedCall(function="Context.run", why="the context was not copied in the frame")
    before = set_here(s)
    switch(s, before, context.values)
    try:
        return function.call(s, rest, kwargs)
    finally:
        context.values = set_here(s)
        switch(s, context.values, before)


def switch(s: CaptureState, old: dict[Hashable, ContextEffect], new: dict[Hashable, ContextEffect]) -> None:
    for key in old:
        s.effects.drop(key)
    for effect in new.values():
        s.effects.replace(effect)
