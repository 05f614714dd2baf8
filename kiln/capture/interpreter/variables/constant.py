"""Constants: immutable built-in values, enum members, dtypes and devices.

A number or string from outside is a constant with a source. It is guarded to be equal when the program first uses it.
"""

from __future__ import annotations

import enum
import re
import types
from typing import Any, final

import torch
from torch.nn.attention import SDPBackend

from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    CallSite,
    CaptureState,
    Codegen,
    Token,
    Value,
    refuse_varying,
    wraps,
)
from kiln.capture.interpreter.process_hashes import guard_hashes
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import DictAttrSource, Source

PLAIN = (
    *(int, float, bool, str, type(None), bytes, complex, type(...), type(NotImplemented), range, types.CodeType),
    *(re.Pattern, re.Match),
)
TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
ITERABLE = (str, bytes, range, frozenset)
MOST_ITEMS = 10_000
"""The items of longer strings and ranges are made one by one."""
IDENTITY = (types.CodeType, type(NotImplemented))
"""Compared by identity in a guard."""


@final
class Constant(Value):
    """A Python value that cannot change."""

    __slots__ = ("_guarded", "source", "value")

    is_constant = True

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source
        self._guarded = source is None

    def python_type(self) -> type:
        return type(self.value)

    def real(self) -> object:
        return self.value

    def constant(self, s: CaptureState) -> Any:
        if not self._guarded:
            self._guard(s)
        return self.value

    def _guard(self, s: CaptureState) -> None:
        refuse_varying(s, self, self.source)
        self._guarded = True
        value = self.value
        if value is None:
            s.guard(self.source, GuardKind.IS_NONE)
        elif isinstance(value, (enum.Enum, *IDENTITY)) or not is_constant(value):
            s.guard(self.source, GuardKind.IS, s.reference(value))
            if self.source is not None:
                s.classes.instances.setdefault(type(value), self.source)
            if isinstance(value, enum.Flag) and self.source is not None and "_value_" in value.__dict__:
                s.guard(DictAttrSource(self.source, "_value_"), GuardKind.EQUALS, value._value_)
        else:
            s.guard(self.source, GuardKind.EQUALS, value)

    def torch_arg(self, s: CaptureState) -> object:
        """Members of integer enums as plain integers: torch takes them as such, and graphs print them by name."""
        value = self.constant(s)
        return int(value) if isinstance(value, enum.IntEnum) else value

    def truth(self, s: CaptureState) -> bool:
        return bool(self.constant(s))

    def length(self, s: CaptureState) -> int:
        try:
            return len(self.constant(s))
        except TypeError as error:
            raise s.error(TypeError, *error.args) from None

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        value = self.constant(s)
        if isinstance(value, frozenset) and len(value) > 1:
            guard_hashes(s, value)
        if isinstance(value, ITERABLE) and len(value) > MOST_ITEMS:
            return s.model.sequence_iterator(s, self)
        if isinstance(value, ITERABLE):
            return s.model.list_of([s.wrap(item, None) for item in value]).iterate(s)
        return super().iterate(s, site)

    def key(self, s: CaptureState) -> Token:
        token: Token = self.constant(s)
        try:
            hash(token)
        except TypeError as error:  # a slice
            raise s.error(TypeError, *error.args) from None
        return token

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        if not key.is_constant and not key.is_torch and s.classes.lookup(type(self.value), "__getitem__") is not None:
            return super().get_item(s, key, site)
        try:
            return s.wrap(self.constant(s)[key.constant(s)], None)
        except (TypeError, IndexError, KeyError) as error:
            raise s.error(type(error), *error.args) from None

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        custom = s.classes.lookup(type(self.value), "__getattribute__") if isinstance(self.value, enum.Enum) else None
        if custom is not None and type(custom[1]) is types.FunctionType:
            function = s.class_attr(self, "__getattribute__", custom[1])
            return function.call(s, [self, s.const(name)], {})
        if isinstance(self.value, enum.Enum) and not self._own_property(s, name):
            found = own_attribute(self.value, name)
            if not callable(found):
                self.constant(s)
                return s.wrap(found, self._path_to(name))
        return super().get_attr(s, name, site)

    def _own_property(self, s: CaptureState, name: str) -> bool:
        """Whether it is a property of the program's enum class."""
        found = s.classes.lookup(type(self.value), name)
        return found is not None and type(found[1]) is property

    def _path_to(self, name: str) -> Source | None:
        """The path to an attribute of an enum member: `value` and `name` are properties."""
        inner = {"value": "_value_", "name": "_name_"}.get(name, name)
        there = self.source is not None and inner in vars(self.value)
        return DictAttrSource(self.source, inner) if there and self.source is not None else None

    def emit(self, g: Codegen) -> None:
        g.body.const(self.value)


def own_attribute(value: enum.Enum, name: str) -> object:
    """What it is without the program's `__getattr__`; `len` if it is not there."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return len


@wraps(*PLAIN, *TORCH, slice, SDPBackend)
@wraps(enum.Enum, subclasses=True)
def wrap_constant(s: CaptureState, real: object, source: Source | None) -> Value:
    return Constant(real, source)
