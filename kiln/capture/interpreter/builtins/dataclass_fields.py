"""`dataclasses.fields` depends on the class alone; `ModelOutput` calls it for every attribute that it sets."""

from __future__ import annotations

import dataclasses

from kiln.capture.interpreter.builtins.polyfilled import interpret
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.made_class import is_made
from kiln.capture.interpreter.variables.sequence import Tuple

FIELDS = "__dataclass_fields__"


@handles(dataclasses.fields)
def fields(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    value = args[0] if args else kwargs["class_or_instance"]
    if isinstance(value, Class):
        cls = value.constant(s)
    else:
        cls = s.guard_type(value)
        s.hides_nothing(value, FIELDS)
    if is_made(s, cls):
        return interpret(s, dataclasses.fields, args, kwargs)
    try:
        found = dataclasses.fields(cls)
    except TypeError as error:
        raise s.error(TypeError, *error.args) from None
    return Tuple([s.wrap(field, None) for field in found])
