"""`dataclasses.fields` depends on the class; `ModelOutput` calls it for every attribute that it sets."""

from __future__ import annotations

import dataclasses
import types

from kiln.capture.interpreter.builtins.polyfilled import interpret
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.made_class import is_made
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.runtime.guards.source import AttrSource, ItemSource, Source

FIELDS = "__dataclass_fields__"


@handles(dataclasses.fields)
def fields(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    value = args[0] if args else kwargs["class_or_instance"]
    if isinstance(value, Class):
        cls, path = value.constant(s), value.source
    else:
        cls, path = s.guard_type(value), s.class_source(value)
        s.hides_nothing(value, FIELDS)
    if is_made(s, cls):
        return interpret(s, dataclasses.fields, args, kwargs)
    try:
        found = dataclasses.fields(cls)
    except TypeError as error:
        raise s.error(TypeError, *error.args) from None
    return Tuple([s.wrap(field, path_to(field, path)) for field in found])


def path_to(field: dataclasses.Field[object], cls: Source | None) -> Source | None:
    """Of a field whose `default_factory` may read variables; the others depend on the class alone."""
    if cls is None or not isinstance(field.default_factory, types.FunctionType):
        return None
    return ItemSource(AttrSource(cls, FIELDS), field.name)
