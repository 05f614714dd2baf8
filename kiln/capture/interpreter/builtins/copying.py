"""`copy.copy` and `copy.deepcopy` of containers and plain instances."""

from __future__ import annotations

import copy
import copyreg
import types
import weakref
from collections.abc import Callable

import torch

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.functions import attribute
from kiln.capture.interpreter.builtins.polyfilled import interpret
from kiln.capture.interpreter.class_lookups import Found
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.native_calls import progress
from kiln.capture.interpreter.pure import is_written_in_c
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.builtin import Builtin, PythonModule, call_unknown
from kiln.capture.interpreter.variables.class_entries import SLOT
from kiln.capture.interpreter.variables.classes import Class, can_be_bare
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.foreign import is_written
from kiln.capture.interpreter.variables.function import Function
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.native_object import NativeObject
from kiln.capture.interpreter.variables.object import InstanceItems, Object, new_object
from kiln.capture.interpreter.variables.sequence import List, Sequence, Tuple
from kiln.capture.interpreter.variables.sets import Set
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.graph.trace.fake import is_wrapped

ATOMIC = (Function, Class, Builtin, PythonModule, Symbolic)
PROTOCOL = (
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
)
STATE = ("__getstate__", "__setstate__")
READS = ("__reduce_ex__", "__reduce__", "__getstate__")
"""What copying reads of the original, in this order."""


class Copier:
    """A call of `copy` or `deepcopy`; `made` maps originals to copies, so that shared objects stay shared."""

    def __init__(self, s: CaptureState, deep: bool) -> None:
        self.s = s
        self.deep = deep
        self.made: dict[int, Value] = {}
        self.originals: list[Value] = []
        """Kept, so that their `id`s stay taken."""
        self.storages: set[int] = set()
        """Of the tensors that were copied."""

    def inner(self, value: Value) -> Value:
        return self.copy(value) if self.deep else value

    def copy(self, value: Value) -> Value:
        if value.is_constant or isinstance(value, ATOMIC):
            return value
        self.originals.append(value)
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
            made.attrs.update((name, self.inner(item)) for name, item in value.attrs.items())
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
        if type(value) is Tensor and self.deep and value.python_type() is torch.nn.Parameter:
            data = record(s, "clone", [value.get_attr(s, "data")], {})
            return s.wrap(torch.nn.Parameter, None).call(s, [data, Constant(value.fake.requires_grad)], {})
        if type(value) is Tensor and self._is_plain(value):
            return record(s, "clone" if self.deep else "detach", [value], {})
        if isinstance(value, NativeObject) and not self.deep and hasattr(value.object, "__copy__"):
            return s.call_special(value, "__copy__", [], {})
        raise UnsupportedCall(function="copy.copy", why=f"copying a {value.type_name()} is not modelled")

    def _is_plain(self, value: Tensor) -> bool:
        """Whether `clone` copies a tensor as its own `__deepcopy__` does: it fills its memory and takes no part in
        autograd; two in one memory share the copy of that."""
        fake, storage = value.fake, id(value.fake.storage_view.storage)
        if is_wrapped(fake) or fake.requires_grad or value.python_type() is not torch.Tensor:
            return False
        if self.deep and (fake.storage_offset() != 0 or not fake.is_contiguous() or storage in self.storages):
            return False
        self.storages.add(storage)
        return True

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
            if name in STATE and is_in_python(found):
                continue
            if found is not None and found[0] not in (object, set):
                raise UnsupportedCall(function="copy.copy", why=f"{value.type_name()} defines {name}")
        if isinstance(value.native, Set) and is_written(s, value.cls, "__init__"):
            raise UnsupportedCall(function="copy.copy", why=f"a set calls the __init__ of {value.type_name()}")
        new = s.classes.lookup(value.cls, "__new__")
        if new is not None and type(new[1]) in (types.FunctionType, staticmethod):
            raise UnsupportedCall(function="copy.copy", why=f"{value.type_name()} defines __new__")
        reads = s.classes.lookup(value.cls, "__getattribute__")
        hooked = reads is not None and not is_written_in_c(reads[0])
        if hooked:
            self._read_original(value)
        made = self.made[id(value)] = new_object(s, value.cls)
        if hooked:
            self._read_copy(made)
        s.guard_type(value)
        if any(is_in_python(s.classes.lookup(value.cls, name)) for name in STATE):
            self._set_state(value, made)
        else:
            for name in value.instance_names():
                item = value.instance_attr(s, name)
                made.attrs[name] = self.inner(item) if item is not None else None
            for name in slots_of(value):
                made.attrs[name] = self.inner(value.get_attr(s, name))
        if value.native is not None:
            native = self._copy(value.native)
            assert isinstance(native, Dict | Set | Sequence)
            made.native = native
        return made

    def _set_state(self, value: Object, made: Object) -> None:
        """By the `__getstate__` and `__setstate__` of the class, as modules do."""
        s, (get, set_) = self.s, (is_in_python(self.s.classes.lookup(value.cls, name)) for name in STATE)
        if not get and slots_of(value):
            raise UnsupportedCall(function="copy.copy", why=f"{value.type_name()} has slots and a __setstate__")
        state = self.inner(s.call_special(value, STATE[0], [], {}) if get else value.get_attr(s, "__dict__"))
        if set_:
            s.call_special(made, STATE[1], [state], {})
        elif not s.is_none(state):
            made.get_attr(s, "__dict__").get_attr(s, "update").call(s, [state], {})

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


def is_in_python(found: Found | None) -> bool:
    """Whether a class attribute is a function written in Python; its own name may be another one."""
    return found is not None and type(found[1]) is types.FunctionType


def slots_of(value: Object) -> list[str]:
    """The slots that hold something."""
    names = {name for kind in value.cls.__mro__ for name in vars(kind) if type(vars(kind)[name]) is SLOT}
    held = [name for name in sorted(names) if value.attrs.get(name) is not None or hasattr(value.original, name)]
    return [name for name in held if value.attrs.get(name, MISSING) is not None]


def is_of_object(function: Value, name: str) -> bool:
    return isinstance(function, Builtin) and function.callable is getattr(object, name)


@handles(copy.copy)
def copy_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return modelled(s, False, copy.copy, args, kwargs)


@handles(copy.deepcopy)
def deepcopy(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    memo = args[1] if len(args) > 1 else kwargs.get("memo")
    if not s.is_none(memo):
        return interpret(s, copy.deepcopy, args, kwargs)
    return modelled(s, True, copy.deepcopy, args[:1], {})


def modelled(s: CaptureState, deep: bool, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """A copy; made by the library's own code where the model does not apply and nothing has been interpreted."""
    begun = progress(s)
    try:
        return Copier(s, deep).copy(args[0])
    except UnsupportedCall:
        if progress(s) != begun or isinstance(args[0], Tensor):
            raise
    return interpret(s, function, args, kwargs)


@handles(object.__reduce_ex__)
def reduce_ex(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    own = isinstance(args[0], Object) and args[0].foreign is None
    if not own or (is_written_in_c(args[0].python_type()) and not can_be_bare(args[0].python_type())):
        return call_unknown(s, object.__reduce_ex__, args, kwargs)
    return s.wrap(polyfills.reduce_ex, None).call(s, args, kwargs)
