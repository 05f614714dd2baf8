"""Objects of classes written in C that the frame makes; `native_calls.py` calls their methods.

numbers = array.array("i", [1])        NativeObject(array('i', [1]))
class Number(int): ...; Number(5)      Object(Number) with Foreign(<proxy: 5>)
"""

from __future__ import annotations

import _random
import types
from collections.abc import Callable
from typing import Protocol, final

from kiln.capture.interpreter.breaks import PastStep, UnsupportedValue
from kiln.capture.interpreter.core import (
    MISSING,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Token,
    Value,
)
from kiln.capture.interpreter.pure import is_confined, is_confined_class
from kiln.runtime.classes import random_in_state

STORED = (types.MemberDescriptorType, types.GetSetDescriptorType)
"""Descriptors of the fields of objects of C."""


PLAIN: dict[type, Callable[..., object]] = {
    **{kind: kind.__pos__ for kind in (int, float, complex)},
    str: lambda text: str.__getitem__(text, slice(None)),
    bytes: lambda data: bytes.__getitem__(data, slice(None)),
}
"""Type -> the same value of the type itself, given one of a class that derives from it."""


class Caller(Protocol):
    """What calls C code: `native_calls.Natives`."""

    made_at: PastStep | None

    def call(self, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value: ...
    def lift(self, real: object) -> Value: ...


@final
class NativeObject(Value):
    """An object of a class written in C that the frame has made and C code works on."""

    __slots__ = ("made_at", "object", "owner")

    def __init__(self, owner: Caller, real: object, made_at: PastStep) -> None:
        self.owner = owner
        self.object = real
        self.made_at = made_at

    def python_type(self) -> type:
        return type(self.object)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        found = s.classes.lookup(type(self.object), name)
        if found is None or (type(found[1]) in STORED and name != "__class__"):
            return self.owner.call(getattr, [self, s.const(name)], {})
        return super().get_attr(s, name, site)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        written = [value] if value is not None else []
        self.owner.call(setattr if written else delattr, [self, s.const(name), *written], {})

    def key(self, s: CaptureState) -> Token:
        try:
            hash(self.object)
        except TypeError as error:
            raise s.error(TypeError, *error.args) from None
        return self.object

    def emit(self, g: Codegen) -> None:
        """Made again as `pickle` would; where that is not possible, the graph breaks in front of where it was made."""
        emit_native(self, g)


@final
class Foreign:
    """What an instance of a class of the program inherits from a class written in C: a proxy of the instance."""

    __slots__ = ("made_at", "object", "owner")

    def __init__(self, owner: Caller, real: object, made_at: PastStep) -> None:
        self.owner = owner
        self.object = real
        self.made_at = made_at

    def read(self, name: str) -> Value:
        return self.owner.lift(getattr(self.object, name))

    def write(self, name: str, value: Value | None) -> bool:
        return False

    def plain(self) -> object:
        base = built_in_base(type(self.object))
        return MISSING if base is None else PLAIN[base](self.object)

    def emit(self, value: Value, g: Codegen) -> None:
        """Of immutable built-in bases: `int.__new__(Number, 5)`; of others whose state can be read and set."""
        base = built_in_base(value.python_type())
        if isinstance(self.object, _random.Random):
            state = _random.Random.getstate(self.object)
            g.make(value, random_in_state, g.state.classes.written(value.python_type()), state)
            return
        if base is None:
            raise UnsupportedValue(type=value.type_name(), why="its base is written in C").before(self.made_at)
        g.make(value, base.__new__, g.state.classes.written(value.python_type()), self.plain())


def built_in_base(cls: type) -> type | None:
    """The number or string type that a class derives from."""
    return next((kind for kind in cls.__mro__ if kind in PLAIN), None)


def emit_native(value: NativeObject, g: Codegen) -> None:
    found, made_at = value.owner, value.made_at
    found.made_at = made_at
    try:
        made = value.object.__reduce_ex__(4)
    except Exception as error:
        raise UnsupportedValue(type=value.type_name(), why=f"it cannot be made again: {error}").before(
            made_at
        ) from None
    if not isinstance(made, tuple) or len(made) > 4 or not is_confined_maker(made[0]):
        raise UnsupportedValue(type=value.type_name(), why="it cannot be made again").before(made_at)
    function, args, state, items = [*made, None, None][:4]
    arguments = [found.lift(arg) for arg in args]
    g.make(value, function, *arguments)
    for name, argument in (("__setstate__", state), ("extend", None if items is None else list(items))):
        if argument is not None:
            g.body.op("COPY", 1).op("LOAD_ATTR", name)
            g.emit(found.lift(argument))
            g.body.call(1).op("POP_TOP")


def is_confined_maker(function: object) -> bool:
    """Whether the function that remakes an object may be called by transformed code."""
    return is_confined_class(function) if isinstance(function, type) else function is iter or is_confined(function)
