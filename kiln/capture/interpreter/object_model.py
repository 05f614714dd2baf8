"""Python's object model, as the kinds of values implement it: what `core.ObjectModel` asks for."""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.core import MISSING, CallSite, CaptureState, Value
from kiln.capture.interpreter.native_calls import natives, plain_value
from kiln.capture.interpreter.operations import equal
from kiln.capture.interpreter.side_changes import state_of
from kiln.capture.interpreter.variables import object as objects
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import List
from kiln.capture.interpreter.variables.subclass import takes_calls


@final
class PythonObjectModel:
    def get_attr(self, s: CaptureState, value: Value, name: str, site: CallSite) -> Value:
        return objects.get_attr(s, value, name, site)

    def bound_attr(self, s: CaptureState, value: Value, name: str, raw: object, site: CallSite) -> Value:
        """`raw`, found on the class of `value`, as an attribute of `value`."""
        return objects.from_class(s, value, name, raw, site)

    def exception(self, s: CaptureState, cls: type, args: tuple[object, ...]) -> Value:
        return objects.new_exception(s, cls, args)

    def constant(self, value: object) -> Value:
        return Constant(value)

    def list_of(self, items: list[Value]) -> Value:
        return List(items)

    def equal(self, s: CaptureState, left: Value, right: Value) -> bool:
        return equal(s, left, right)

    def state_of(self, s: CaptureState, value: Value, name: str) -> object:
        return state_of(s, value, name)

    def plain(self, s: CaptureState, value: Value) -> object:
        return plain_value(s, value) if isinstance(value, objects.Object) else MISSING

    def takes_calls(self, s: CaptureState, value: Value) -> bool:
        return isinstance(value, objects.Object) and takes_calls(s, value)

    def sequence_iterator(self, s: CaptureState, value: Value) -> Value:
        """Over an object that has only `__getitem__`, or whose items are too many to be made at once."""
        return natives(s).call(iter, [value], {})
