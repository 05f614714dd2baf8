"""Properties, static and class methods that are made in the frame.

    @property
    def size(self): ...            MadeDescriptor(property, {"fget": <size>})

A class made in the frame holds them (`made_class.py`). An instance of a class that derives from `property` is one, too,
which stays in the frame.
"""

from __future__ import annotations

import types
from typing import final

from kiln.capture.interpreter.breaks import Raised, UnsupportedValue
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
from kiln.support.records import dataclass

PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
"""The attributes in which a descriptor keeps its functions, in the order of the arguments that make it."""


def parts_of(kind: type) -> tuple[str, ...]:
    return PARTS[next(base for base in kind.__mro__ if base in PARTS)]


COPIED = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")
"""What a static or class method has from its function."""


def is_abstract(s: CaptureState, function: Value) -> bool:
    try:
        return function.get_attr(s, "__isabstractmethod__").truth(s)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
        return False


@final
@dataclass(eq=False)
class MadeDescriptor(Value):
    """`kind(*parts)`; a part that was not given is None."""

    kind: type
    parts: dict[str, Value]

    def python_type(self) -> type:
        return self.kind

    def part(self, name: str) -> Value:
        return self.parts.get(name, Constant(None))

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name in parts_of(self.kind):
            return self.part(name)
        if name == "__isabstractmethod__":
            return Constant(any(is_abstract(s, self.part(part)) for part in parts_of(self.kind)))
        if issubclass(self.kind, property):
            return self._doc(s) if name == "__doc__" and self.kind is property else super().get_attr(s, name, site)
        function = self.part("__func__")
        if name == "__wrapped__":
            return function
        if name in COPIED and function.python_type() is types.FunctionType:
            return function.get_attr(s, name)
        return super().get_attr(s, name, site)

    def _doc(self, s: CaptureState) -> Value:
        """That of a property, by default the one of its getter."""
        given, getter = self.part("doc"), self.part("fget")
        if not s.is_none(given) or s.is_none(getter):
            return given
        return getter.get_attr(s, "__doc__")

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        if self.kind is not staticmethod:
            raise s.error(TypeError, f"'{self.kind.__name__}' object is not callable")
        return self.part("__func__").call(s, args, kwargs, site)

    def emit(self, g: Codegen) -> None:
        if self.kind not in PARTS:
            raise UnsupportedValue(
                type=self.type_name(), why="it is a property of a class of its own, made while tracing"
            )
        names = (*PARTS[self.kind], "doc") if "doc" in self.parts else PARTS[self.kind]
        g.make(self, self.kind, *[self.part(name) for name in names])


def made(s: CaptureState, kind: type, args: Args, kwargs: Kwargs) -> Value:
    """The handler of `kind` as a callable."""
    return MadeDescriptor(kind, parts_given(kind, args, kwargs))


def parts_given(kind: type, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    names = (*PARTS[kind], "doc") if kind is property else PARTS[kind]
    parts = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > len(names) or kwargs.keys() - set(names):
        raise ValueError("an argument that is not a function")
    return parts


@handles(property)
def make_property(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return made(s, property, args, kwargs)


@handles(property.__init__)
def init_property(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`property.__init__(self, ...)`, which the `__init__` of a derived class calls."""
    made_here, *functions = args
    if not isinstance(made_here, MadeDescriptor):
        raise made_here.unsupported("property.__init__", "it was made outside")
    made_here.parts = parts_given(property, functions, kwargs)
    return Constant(None)


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


def lacks_accessor(s: CaptureState, value: Value, name: str, what: str) -> Raised:
    """What a property without a getter, setter or deleter raises."""
    text = f"property '{name}' of {value.python_type().__qualname__!r} object has no {what}"
    return s.error(AttributeError, text)
