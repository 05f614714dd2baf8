"""Methods bound to their objects.

items.append      function <list.append>, self_ <items>; transformed code binds it by `list.append.__get__(items)`
model.forward     function <Net.forward>, self_ <model>; by `MethodType(Net.forward, model)`
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import final

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
from kiln.runtime.guards.source import Source
from kiln.support.records import dataclass

BOUND_TYPES: Mapping[type, type] = types.MappingProxyType(
    {
        types.MethodDescriptorType: types.BuiltinMethodType,
        types.ClassMethodDescriptorType: types.BuiltinMethodType,
        types.WrapperDescriptorType: types.MethodWrapperType,
    }
)
"""Descriptors written in C: the type of what `__get__` makes."""


class NamedMethod(Value):
    """A method of C that a kind of values has a model of, bound to such a value."""

    __slots__ = ("name", "owner")
    cls: type = types.BuiltinMethodType
    owner: Value

    def __init__(self, owner: Value, name: str) -> None:
        self.owner = owner
        self.name = name

    def emit(self, g: Codegen) -> None:
        g.emit(self.owner)
        g.body.op("LOAD_ATTR", self.name)


@final
@dataclass(frozen=True, slots=True, eq=False)
class BoundMethod(Value):
    """A method bound to its object."""

    function: Value
    self_: Value
    source: Source | None = None
    original: object = None

    def python_type(self) -> type:
        if self.original is not None:
            return type(self.original)
        return BOUND_TYPES.get(type(self.function.real()), types.MethodType)

    def real(self) -> object:
        return MISSING if self.original is None else self.original

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return self.function.call(s, [self.self_, *args], kwargs, site)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name == "__func__":
            return self.function
        if name == "__self__":
            return self.self_
        return self.function.get_attr(s, name, site)

    def truth(self, s: CaptureState) -> bool:
        return True

    def emit(self, g: Codegen) -> None:
        method = self.function.real()
        kind = type(method)
        if kind not in BOUND_TYPES:
            g.make(None, types.MethodType, self.function, self.self_)
        elif self.self_.python_type() is types.NoneType:  # `__get__` takes None for no object
            g.emit(self.self_)
            g.body.op("LOAD_ATTR", getattr(method, "__name__", ""))
        else:
            owner = getattr(method, "__objclass__", None)
            g.emit(self.function)
            g.body.op("LOAD_ATTR", "__get__")
            if kind is types.ClassMethodDescriptorType:
                g.body.const(None)
            g.emit(self.self_)
            if kind is types.MethodDescriptorType:
                g.body.const(owner)  # CPython 3.11 reads it without a check
            g.body.call(1 + (kind is not types.WrapperDescriptorType))
        g.remember(self)
