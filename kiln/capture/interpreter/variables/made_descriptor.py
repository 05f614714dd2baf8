"""Properties, static and class methods that are made in the frame.

    @property
    def size(self): ...            MadeDescriptor(property, {"fget": <size>})

A class made in the frame holds them (`made_class.py`).
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Handler,
    Kwargs,
    Value,
    handles,
)
from kiln.capture.interpreter.variables.constant import Constant

PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
"""The attributes in which a descriptor keeps its functions, in the order of the arguments that make it."""


@final
class MadeDescriptor(Value):
    """`kind(*parts)`; a part that was not given is None."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind: type, parts: dict[str, Value]) -> None:
        self.kind = kind
        self.parts = parts
        self.source = None

    def python_type(self) -> type:
        return self.kind

    def truth(self, s: CaptureState) -> bool:
        return True

    def part(self, name: str) -> Value:
        return self.parts.get(name, Constant(None))

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name in PARTS[self.kind]:
            return self.part(name)
        if name == "__wrapped__" and self.kind is not property:
            return self.part("__func__")
        return super().get_attr(s, name, site)

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        if self.kind is not staticmethod:
            raise s.error(TypeError, f"'{self.kind.__name__}' object is not callable")
        return self.part("__func__").call(s, args, kwargs, site)

    def emit(self, g: Codegen) -> None:
        g.body.const(self.kind)
        for name in PARTS[self.kind]:
            g.emit(self.part(name))
        g.body.call(len(PARTS[self.kind]))
        g.remember(self)


def made(s: CaptureState, kind: type, args: Args, kwargs: Kwargs) -> Value:
    """The handler of `kind` as a callable; a docstring given to a property is not kept."""
    parts = dict(zip(PARTS[kind], args, strict=False)) | kwargs
    if len(args) > len(PARTS[kind]) or kwargs.keys() - set(PARTS[kind]):
        raise ValueError("an argument that is not a function")
    return MadeDescriptor(kind, parts)


@handles(property)
def make_property(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return made(s, property, args, kwargs)


@handles(staticmethod)
def make_static_method(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    (function,) = args
    return made(s, staticmethod, [function], kwargs)


@handles(classmethod)
def make_class_method(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    (function,) = args
    return made(s, classmethod, [function], kwargs)


def replacing(name: str) -> Handler:
    """The handler of `property.getter` and its kin, which make another property with one function replaced."""

    def replace(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        old, function = args
        if not isinstance(old, MadeDescriptor):
            raise old.unsupported("make another property", "it was made outside")
        return MadeDescriptor(property, {**old.parts, name: function})

    return replace


handles(property.getter)(replacing("fget"))
handles(property.setter)(replacing("fset"))
handles(property.deleter)(replacing("fdel"))
