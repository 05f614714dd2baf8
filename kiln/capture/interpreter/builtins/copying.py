"""`copy.copy` and `copy.deepcopy` of containers and plain instances."""

from __future__ import annotations

import copy
import copyreg
import types
import weakref

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.functions import attribute
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.builtin import Builtin, PythonModule
from kiln.capture.interpreter.variables.class_entries import is_slot
from kiln.capture.interpreter.variables.classes import Class, can_be_bare
from kiln.capture.interpreter.variables.function import Function
from kiln.capture.interpreter.variables.mapping import Dict, Set
from kiln.capture.interpreter.variables.native_object import NativeObject
from kiln.capture.interpreter.variables.object import InstanceItems, Object, new_object
from kiln.capture.interpreter.variables.sequence import List, Sequence, Tuple

ATOMIC = (Function, Class, Builtin, PythonModule)
PROTOCOL = (
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
)
READS = ("__reduce_ex__", "__reduce__", "__getstate__")
"""What copying reads of the original, in this order."""


class Copier:
    """A call of `copy` or `deepcopy`; `made` maps originals to copies, so that shared objects stay shared."""

    def __init__(self, s: CaptureState, deep: bool) -> None:
        self.s = s
        self.deep = deep
        self.made: dict[int, Value] = {}

    def inner(self, value: Value) -> Value:
        return self.copy(value) if self.deep else value

    def copy(self, value: Value) -> Value:
        if value.is_constant or isinstance(value, ATOMIC):
            return value
        known = self.made.get(id(value))
        if known is None:
            known = self.made[id(value)] = self._copy(value)
        return known

    def _copy(self, value: Value) -> Value:
        s = self.s
        if isinstance(value, List):
            copied = List([])
            self.made[id(value)] = copied
            for item in value.items(s):
                copied.append(s, self.inner(item))
            return copied
        if isinstance(value, Sequence):
            items = [self.inner(item) for item in value.items(s)]
            same = all(new is old for new, old in zip(items, value.items(s), strict=True))
            return value if same and value.cls is tuple else Tuple(items, value.cls)
        if isinstance(value, Dict):
            made = Dict({}, value.cls)
            self.made[id(value)] = made
            made.factory = value.factory
            for token, (key, item) in value.items(s).items():
                made.items(s)[token] = self.inner(key), self.inner(item)
            return made
        if isinstance(value, Set) and self.deep:
            made_set = Set({})
            made_set.combine_in_place(s, "update", [List([self.copy(item) for item in value.in_order(s).values()])])
            made_set.cls = value.cls
            return made_set
        if isinstance(value, Set):
            return value if value.cls is frozenset else Set(dict(value.in_order(s)), value.cls)
        if isinstance(value, Object):
            return self._instance(value)
        if isinstance(value, NativeObject) and not self.deep and hasattr(value.object, "__copy__"):
            return s.call_special(value, "__copy__", [], {})
        raise UnsupportedCall(function="copy.copy", why=f"copying a {value.type_name()} is not modelled")

    def _instance(self, value: Object) -> Value:
        s = self.s
        if value.cls is weakref.ref:
            return value
        if value.cls in copyreg.dispatch_table or not can_be_bare(value.cls):
            raise UnsupportedCall(function="copy.copy", why=f"copying a {value.type_name()} is not modelled")
        special = "__deepcopy__" if self.deep else "__copy__"
        if s.classes.lookup(value.cls, special) is not None:
            return s.call_special(value, special, [Dict({})] if self.deep else [], {})
        for name in PROTOCOL:
            found = s.classes.lookup(value.cls, name)
            if found is not None and found[0] is not object:
                raise UnsupportedCall(function="copy.copy", why=f"{value.type_name()} defines {name}")
        new = s.classes.lookup(value.cls, "__new__")
        if new is not None and type(new[1]) in (types.FunctionType, staticmethod):
            raise UnsupportedCall(function="copy.copy", why=f"{value.type_name()} defines __new__")
        if any(name != "__dict__" and is_slot(value.cls, name) for kind in value.cls.__mro__ for name in vars(kind)):
            raise UnsupportedCall(function="copy.copy", why=f"{value.type_name()} has slots")
        reads = s.classes.lookup(value.cls, "__getattribute__")
        hooked = reads is not None and reads[0] is not object
        if hooked:
            self._read_original(value)
        made = self.made[id(value)] = new_object(s, value.cls)
        if hooked:
            self._read_copy(made)
        s.guard_type(value)
        for name in value.instance_names():
            item = value.instance_attr(s, name)
            made.attrs[name] = self.inner(item) if item is not None else None
        if value.native is not None:
            native = self._copy(value.native)
            assert isinstance(native, Dict | Set | Sequence)
            made.native = native
        return made

    def _read_original(self, value: Object) -> None:
        """The reads that a `__getattribute__` of the program sees; they must give what `object` has."""
        if self.deep and attribute(self.s, value, "__deepcopy__") is not None:
            raise UnsupportedCall(function="copy.deepcopy", why=f"{value.type_name()} answers for __deepcopy__")
        for name in READS:
            found = attribute(self.s, value, name)
            if not (isinstance(found, BoundMethod) and found.self_ is value and is_of_object(found.function, name)):
                raise UnsupportedCall(function="copy.copy", why=f"{value.type_name()} answers for {name}")

    def _read_copy(self, made: Object) -> None:
        found = None if attribute(self.s, made, "__setstate__") is not None else attribute(self.s, made, "__dict__")
        items = found.items(self.s) if isinstance(found, Dict) else None
        if not isinstance(items, InstanceItems) or items.owner is not made:
            raise UnsupportedCall(function="copy.copy", why=f"{made.type_name()} answers for its state")


def is_of_object(function: Value, name: str) -> bool:
    return isinstance(function, Builtin) and function.callable is getattr(object, name)


@handles(copy.copy)
def copy_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Copier(s, False).copy(args[0])


@handles(copy.deepcopy)
def deepcopy(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    memo = args[1] if len(args) > 1 else kwargs.get("memo")
    if not s.is_none(memo):
        raise UnsupportedCall(function="copy.deepcopy", why="it is given a memo")
    return Copier(s, True).copy(args[0])
