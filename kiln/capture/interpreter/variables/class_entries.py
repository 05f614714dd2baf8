"""What an entry of a class does when an attribute of an instance is read or written."""

from __future__ import annotations

import types

from kiln.capture.interpreter.core import CaptureState, Value, is_deleted
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource

SLOT = types.MemberDescriptorType
GETSET = types.GetSetDescriptorType
SLOT_WRAPPER = types.WrapperDescriptorType


def writes_otherwise(special: object) -> bool:
    """Whether it is not the `__setattr__` or `__delattr__` of a built-in class."""
    return type(special) is not SLOT_WRAPPER or special.__name__ not in ("__setattr__", "__delattr__")


def is_slot(cls: type, name: str) -> bool:
    """Whether instances hold the name outside of their dict."""
    found = next((vars(kind)[name] for kind in cls.__mro__ if name in vars(kind)), None)
    return isinstance(found, SLOT)


def guard_lacks(s: CaptureState, value: Value, name: str) -> None:
    """Guard that `value.name` is found nowhere: a slot of its class may be empty."""
    if is_deleted(value, name):
        return
    if value.source is not None and is_slot(value.python_type(), name):
        s.guard(AttrSource(value.source, name), GuardKind.ABSENT)
    else:
        s.guard(value.source, GuardKind.NO_ATTR, name)


def is_computed(s: CaptureState, cls: type, name: str) -> bool:
    """Whether a property or `__get__` of the program answers."""
    found = s.classes.lookup(cls, name)
    if found is None or type(found[1]) is types.FunctionType:
        return False
    getter = s.classes.lookup(type(found[1]), "__get__")
    return type(found[1]) is property or (getter is not None and type(getter[1]) is types.FunctionType)


def is_data_descriptor(s: CaptureState, raw: object) -> bool:
    kind = type(raw)
    if kind is types.FunctionType:
        return False
    return kind in (property, SLOT, GETSET) or s.classes.lookup(kind, "__set__") is not None
