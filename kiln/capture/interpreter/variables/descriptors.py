"""Descriptors of the standard library: fields of named tuples, cached properties, struct sequences.

pair.left              item 0 of the tuple
self.table             functools.cached_property: computed once, kept in the instance's dict
torch.max(x, 0).values item 0 of a struct sequence
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict
from typing import Any

from kiln.capture.interpreter.core import MISSING, CaptureState, Value
from kiln.capture.interpreter.variables.cached_function import CACHED, cached_method
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import DESCRIPTORS, Object
from kiln.capture.interpreter.variables.sequence import Sequence
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import TUPLE_GETTER, field_index
from kiln.runtime.guards.source import AttrSource, attribute_path


def tuple_field(s: CaptureState, value: Value, name: str, raw: Any) -> Value | None:
    inner = getattr(value, "native", None) or value
    if not isinstance(inner, Sequence):
        return None
    source = s.class_source(value)
    if source is not None:
        s.guard(AttrSource(source, name), GuardKind.IS, s.reference(raw))
    return inner.items(s)[field_index(raw)]


def cached_property(s: CaptureState, value: Value, name: str, raw: Any) -> Value | None:
    if not isinstance(value, Object):
        return None
    found = s.classes.lookup(value.cls, name)
    if found is not None and found[0] in s.classes.made:
        return None  # an object of the frame, whose `__get__` is interpreted
    known = value.instance_attr(s, name)
    if known is None:
        if value.original is not MISSING:
            s.hides_nothing(value, name)
        path = s.class_attr(value, name, raw).source
        known = s.wrap(raw.func, attribute_path(path, "func")).call(s, [value], {})
        value.store_attr(s, name, known)
    return known


def struct_field(s: CaptureState, value: Value, name: str, raw: object) -> Value | None:
    if isinstance(value, Dict) and raw is vars(defaultdict)["default_factory"] and value.real() is MISSING:
        return value.factory or Constant(None)
    names = getattr(value.python_type(), "__match_args__", ())
    if isinstance(value, Sequence) and hasattr(value.cls, "n_sequence_fields") and name in names:
        return value.items(s)[names.index(name)]
    return None


DESCRIPTORS.update(
    {
        TUPLE_GETTER: tuple_field,
        functools.cached_property: cached_property,
        types.MemberDescriptorType: struct_field,
        CACHED: cached_method,
    }
)
