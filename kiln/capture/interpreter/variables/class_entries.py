"""What an entry of a class does when an attribute of an instance is read or written."""

from __future__ import annotations

import types

from kiln.capture.interpreter.core import CaptureState

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
