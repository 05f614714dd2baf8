"""Context variables: a `set` in the frame is undone by a `reset` in the frame, or becomes a side effect.

token = VAR.set(x)        the transformed code sets it only if a break or the end comes before the reset
VAR.get()                 the value set in the frame; an earlier value cannot be guarded and breaks the graph
VAR.reset(token)
"""

from __future__ import annotations

import contextvars
from collections.abc import Hashable
from typing import final

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Codegen, Kwargs, Value, handles
from kiln.capture.interpreter.effects import CallEffect, SideEffect
from kiln.capture.interpreter.variables.builtin import Builtin
from kiln.capture.interpreter.variables.constant import Constant
from kiln.support.records import dataclass


@final
class ContextToken(Value):
    """The result of `set`; building it calls `set`."""

    __slots__ = ("before", "content", "variable")

    def __init__(self, variable: contextvars.ContextVar[object], content: Value, before: ContextToken | None) -> None:
        self.variable = variable
        self.content = content
        self.before = before
        self.source = None

    def python_type(self) -> type:
        return contextvars.Token

    def truth(self, s: CaptureState) -> bool:
        return True

    def emit(self, g: Codegen) -> None:
        if self.before is not None:
            g.emit(self.before)
            g.body.op("POP_TOP")
        g.make(self, self.variable.set, self.content)


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


def context_key(variable: object) -> Hashable:
    return "context", id(variable)


def current(s: CaptureState, variable: object) -> ContextToken | None:
    effect = s.effects.find(context_key(variable))
    return effect.token if isinstance(effect, ContextEffect) else None


def variable_of(s: CaptureState, args: Args) -> contextvars.ContextVar[object]:
    s.counters.unguarded += 1
    variable = args[0].real()
    assert isinstance(variable, contextvars.ContextVar)
    return variable


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
    if token is None:
        raise UnsupportedCall(function="ContextVar.get", why="its value from before the frame cannot be guarded")
    return token.content


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
