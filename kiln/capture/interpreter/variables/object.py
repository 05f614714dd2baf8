"""Objects of user classes, and attribute lookup.

    self.scale        instance dict of an object from outside: source self.__dict__['scale']
    self.forward      a function on the class: a bound method, guarded once per class and name
    self.size         a property: its getter is inlined

`attrs` holds what was read from or written to the instance. An object whose class derives from a built-in
container has that container in `native`.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
import typing
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, cast, final

import torch
from torch.torch_version import TorchVersion

from kiln.capture.interpreter.breaks import AS_CONSTANT, Raised, UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.core import (
    MISSING,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Token,
    Value,
    will_change,
    wraps,
)
from kiln.capture.interpreter.effects import SideEffect, emit_attribute, emit_deletion
from kiln.capture.interpreter.pure import is_written_in_c
from kiln.capture.interpreter.variables.attribute_items import AttributeItems, OwnItems
from kiln.capture.interpreter.variables.attribute_tables import AttributeTables
from kiln.capture.interpreter.variables.bound_method import BOUND_TYPES, BoundMethod
from kiln.capture.interpreter.variables.choice import Choice, emit_present
from kiln.capture.interpreter.variables.class_entries import (
    GETSET,
    SLOT,
    SLOT_WRAPPER,
    guard_lacks,
    is_computed,
    is_data_descriptor,
    is_slot,
    writes_otherwise,
)
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.derived_container import Native, native_of
from kiln.capture.interpreter.variables.exception import (
    OWN_FIELDS,
    converted,
    emit_exception,
    field_of,
    fill,
    is_field,
    set_field,
)
from kiln.capture.interpreter.variables.foreign import ForeignPart, is_written
from kiln.capture.interpreter.variables.function import handler_of
from kiln.capture.interpreter.variables.hashed_key import guard_identity, hashed_key, refers_by_identity
from kiln.capture.interpreter.variables.made_descriptor import MadeDescriptor, lacks_accessor
from kiln.capture.interpreter.variables.mapping import Dict, claim_dict
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.sets import Set
from kiln.native._frames import Dispatcher
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import TWIN_OF
from kiln.runtime.guards.source import (
    AttrSource,
    CallSource,
    DictAttrSource,
    MethodFuncSource,
    ModuleGlobalSource,
    MroSource,
    Source,
)
from kiln.support.records import dataclass

CONTAINERS = (OrderedDict, dict, list, set, frozenset, tuple)
ALIASES = (types.UnionType, types.GenericAlias, typing.TypeVar, typing.ParamSpec, TorchVersion)
"""Types of objects that stand for a type in `isinstance` and in annotations, and of `torch.__version__`."""
OWN_READS = (weakref.ProxyType, weakref.CallableProxyType)
"""Classes written in C whose attributes are not stored in the object."""
GETATTR = ModuleGlobalSource("builtins", "getattr")
PLAIN_ARGUMENTS = (int, float, complex, torch.Tensor)
"""What torch gets for an instance of a class that derives from one of these."""
NO_DICT = " and no __dict__ for setting new attributes" if sys.version_info >= (3, 13) else ""
"""How the error ends of a new attribute of an instance that has no place for it."""
BINDS_TWICE = sys.version_info < (3, 13)
"""A class method calls the `__get__` of what it holds."""
PLAIN_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, Dispatcher, functools.partial)
MODELLED_CALLS = (types.FunctionType, staticmethod, classmethod)
"""Types of `__call__` attributes that can be called as values."""


def plain_dict(real: object) -> dict[str, object]:
    """The instance dict of an object, empty if it has none; its class's own `__getattribute__` is not run."""
    try:
        return object.__getattribute__(real, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


def store_field(s: CaptureState, error: Object, name: str, value: Value | None) -> None:
    """Set what a built-in exception class keeps."""
    if value is None:
        raise s.error(TypeError, f"{name} may not be deleted") if name in OWN_FIELDS else error.lacks(s, name)
    set_field(s, error, name, value)
    error.put_attr(s, name, converted(s, name, value))


class Object(Value):
    """An instance of a class; `original` is the object from outside, MISSING if it was made in the frame."""

    __slots__ = ("attrs", "cls", "foreign", "native", "original", "source")

    def __init__(self, cls: type, source: Source | None = None, original: Any = MISSING) -> None:
        self.cls = cls
        self.source = source
        self.original = original
        self.attrs: dict[str, Value | None] = {}
        self.native: Native | None = None
        self.foreign: ForeignPart | None = None

    def real(self) -> object:
        return self.original

    def constant(self, s: CaptureState) -> Any:
        if self.original is MISSING or (self.source is not None and self.cls not in ALIASES):
            raise self.unsupported(AS_CONSTANT, "objects are not constants")
        s.guard(self.source, GuardKind.IS, s.reference(self.original))
        return self.original

    def instance_attr(self, s: CaptureState, name: str) -> Value | None:
        """From the instance's own dict."""
        if name in self.attrs:
            found = self.attrs[name]
            key = "attribute", id(self), name
            if s.effects.changes and isinstance(effect := s.effects.find(key), AttributeEffect):
                effect.is_read = True
            return found if not isinstance(found, Choice) else found.present()
        content = self.own_dict(s)
        if content is None or name not in content:
            return None
        if not self.attrs:
            s.guard_type(self)
        source = DictAttrSource(self.source, name) if self.source is not None else None
        found = self.attrs[name] = s.wrap(content[name], source)
        return found

    def own_dict(self, s: CaptureState) -> dict[str, object] | None:
        """The instance's dict from before the frame, if any, to be represented by `attrs`."""
        if self.original is MISSING or isinstance(self.attrs, OwnItems):
            return None
        try:
            content: dict[str, object] = object.__getattribute__(self.original, "__dict__")
        except AttributeError:
            return None
        claim_dict(s, self, content)
        return content

    def had_attr(self, name: str) -> bool:
        """Whether the instance's dict had the name before the frame."""
        return self.original is not MISSING and name in plain_dict(self.original)

    def instance_names(self) -> list[str]:
        """The current keys of the instance's dict."""
        names = list(plain_dict(self.original)) if self.original is not MISSING else []
        for value in self.attrs.values():
            isinstance(value, Choice) and value.present()
        names += [name for name in self.attrs if name not in names]
        return [name for name in names if self.attrs.get(name, True) is not None and is_in_dict(self, name)]

    def is_field(self, name: str) -> bool:
        """Whether a built-in exception class keeps what `attrs` holds under this name."""
        return issubclass(self.cls, BaseException) and is_field(getattr(self.cls, name, None))

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        special = "__setattr__" if value is not None else "__delattr__"
        guard_protocol(s, self, special)
        found = s.classes.lookup(self.cls, special)
        if found is not None and found[0] in OWN_READS:
            raise UnsupportedAttribute(name=name, type=self.type_name(), why="writing it is done in C")
        if found is not None and writes_otherwise(found[1]) and not is_plain_write(s, found[1], self, name, value):
            args = [self, s.const(name), *([value] if value else [])]
            s.class_attr(self, special, found[1]).call(s, args, {}, site.discarding())
            return
        self.store_attr(s, name, value, site)

    def store_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        """`object.__setattr__`: data descriptors, then the instance dict."""
        s.guard_type(self)
        found = s.classes.lookup(self.cls, name)
        if found is not None:
            raw = found[1]
            if isinstance(raw, property):
                accessor = raw.fset if value is not None else raw.fdel
                if accessor is None:
                    raise lacks_accessor(s, self, name, "setter" if value is not None else "deleter")
                args, part = [self, *([value] if value else [])], "fset" if value is not None else "fdel"
                accessor_value(s, self, name, accessor, part).call(s, args, {}, site.discarding())
                return
            special = "__set__" if value is not None else "__delete__"
            setter = s.classes.lookup(type(raw), special)
            if setter is not None and type(setter[1]) is types.FunctionType:
                descriptor = s.class_attr(self, name, raw)
                s.call_special(descriptor, special, [self, *([value] if value else [])], {}, site.discarding())
                return
            own = s.part(AttributeTables).instance_dicts.get(id(self))
            if name == "__dict__" and value is not None and value is own:
                return  # `self.__dict__ |= items`
            if name == "__dict__" and value is self and isinstance(self.native, Dict) and self.original is MISSING:
                share_dict(s, self)
                return
            if name == "__dict__" and isinstance(value, Dict) and takes_dict(s, self, value):
                return
            if issubclass(self.cls, BaseException) and is_field(raw):
                store_field(s, self, name, value)
                return
            if self.foreign is not None and self.foreign.write(name, value):
                return
            if isinstance(raw, GETSET) or (not isinstance(raw, SLOT) and setter is not None):
                raise UnsupportedAttribute(name=name, type=self.type_name(), why="it is a data descriptor")
        self.own_dict(s)
        if value is None and not self.has_own_attr(s, name, found[1] if found is not None else None):
            slot = found is not None and isinstance(found[1], SLOT)
            raise s.error(AttributeError, name) if slot else self.lacks(s, name)
        if value is not None and not self.has_place(name, found[1] if found is not None else None):
            missing, fixed = f"object has no attribute '{name}'{NO_DICT}", f"object attribute '{name}' is read-only"
            raise s.error(AttributeError, f"'{self.type_name()}' {missing if found is None else fixed}")
        self.put_attr(s, name, value)

    def has_place(self, name: str, raw: object) -> bool:
        """Whether an instance can hold the name: it has a slot (`raw`) for it, or a dict."""
        held = isinstance(raw, SLOT | GETSET) or isinstance(self.attrs, OwnItems)
        return held or self.cls.__dictoffset__ != 0 or issubclass(self.cls, BaseException)

    def has_own_attr(self, s: CaptureState, name: str, raw: object) -> bool:
        """Whether a slot (`raw`) or the instance's dict holds the name."""
        if not isinstance(raw, SLOT):
            return self.instance_attr(s, name) is not None
        if name in self.attrs:
            return self.attrs[name] is not None
        if self.original is not MISSING:
            if not hasattr(self.original, name):
                raise UnsupportedAttribute(name=name, type=self.type_name(), why="the slot to be deleted is empty")
            s.wrap(getattr(self.original, name), AttrSource(self.source, name) if self.source is not None else None)
            return True
        return False

    def lacks(self, s: CaptureState, name: str) -> Raised:
        """The error of a name that the instance does not hold."""
        s.guard_type(self)
        if self.source is not None and not self.had_attr(name):
            s.guard(DictAttrSource(self.source, name), GuardKind.ABSENT)
        return s.error(AttributeError, f"'{self.type_name()}' object has no attribute '{name}'")

    def put_attr(self, s: CaptureState, name: str, value: Value | None) -> None:
        """Write the instance's dict; an attribute that was deleted before comes last."""
        s.counters.change()
        will_change(s, self, name)
        recreated = value is not None and self.attrs.get(name, MISSING) is None
        if recreated and not isinstance(self.attrs, OwnItems):
            del self.attrs[name]
        self.attrs[name] = value
        if not isinstance(self.attrs, OwnItems):
            self._note_write(s, name, recreated)

    def _note_write(self, s: CaptureState, name: str, recreated: bool) -> None:
        if self.source is None and self.original is not MISSING:
            raise self.unsupported("change", "it has no path from the arguments of the frame")
        if self.source is not None and recreated:
            s.effects.move_to_end(AttributeEffect(self, name, recreated))
        elif self.source is not None:
            s.effects.note(AttributeEffect(self, name, recreated))

    def key(self, s: CaptureState) -> Token:
        """Itself, if it is hashed by identity; guarded to be another object than the other keys."""
        found = s.classes.lookup(self.cls, "__hash__")
        if found is not None and not is_written(s, self.cls, "__hash__", "__eq__"):
            plain = s.model.plain(s, self)
            if isinstance(plain, Hashable) and plain is not MISSING:
                return plain
        if isinstance(self.native, Set | Tuple) and not is_written(s, self.cls, "__hash__", "__eq__"):
            return self.native.key(s)
        if found is not None and found[1] is None:
            raise s.error(TypeError, f"unhashable type: '{self.type_name()}'")
        if found is not None and found[1] is torch.Tensor.__hash__:
            s.identities.keys[id(self)] = self
            return self
        if found is not None and isinstance(found[1], types.FunctionType):
            return hashed_key(s, self)
        if found is None or (found[1] is not object.__hash__ and not refers_by_identity(self.original)):
            raise self.unsupported("hash", "its class defines its own hash")
        if found[1] is not object.__hash__:
            guard_identity(s, self)
        elif self.original is not MISSING:
            s.identities.keys[id(self)] = self
        return self if self.original is MISSING else cast(Token, self.original)

    def torch_arg(self, s: CaptureState) -> object:
        if self.native is not None:
            return self.native.torch_arg(s)
        if isinstance(number := s.model.plain(s, self), PLAIN_ARGUMENTS):
            return number
        return NotImplemented if s.model.takes_calls(s, self) else super().torch_arg(s)  # which torch takes nowhere

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        found = s.classes.lookup(self.cls, "__call__")
        if found is not None and type(found[1]) not in MODELLED_CALLS:
            handler = handler_of(found[1])
            if handler is not None:
                s.guard_type(self)
                return handler(s, [self, *args], kwargs)
            raise UnsupportedCall(function=self.type_name(), why="its `__call__` is not supported")
        return s.call_special(self, "__call__", args, kwargs, site)

    def emit(self, g: Codegen) -> None:
        """Built without the class's `__new__` and `__init__`: bare object, container contents, instance dict."""
        if self.original is not MISSING:
            g.body.const(self.original)
            return
        if issubclass(self.cls, BaseException):
            emit_exception(self, self, g)
            return
        if self.foreign is not None and self.native is None:
            self.foreign.emit(self, g)
        else:
            emit_bare(self, g)
        if isinstance(self.attrs, OwnItems):
            g.body.op("COPY", 1)
            if self.attrs.native is self.native:
                g.body.op("COPY", 2)
            else:
                g.emit(self.attrs.native)
                g.body.op("SWAP", 2)
            g.body.op("STORE_ATTR", "__dict__")
            return
        for name, value in self.attrs.items():
            if value is not None:
                emit_present(g, value, functools.partial(emit_attribute, g, self.cls, name))


def emit_bare(value: Object, g: Codegen) -> None:
    base = next((kind for kind in (*CONTAINERS, types.SimpleNamespace) if issubclass(value.cls, kind)), object)
    fixed = [value.native] if base in (tuple, frozenset) else []
    g.make(value, base.__new__, g.state.classes.written(value.cls), *fixed)
    if value.native is not None and not fixed:
        emit_native(value.native, base, g)


@final
@dataclass
class AttributeEffect(SideEffect):
    """An attribute of an object was set or deleted; its last value is in `attrs`."""

    value: Object
    name: str
    recreated: bool
    """It was deleted before it was set, so it comes last in the instance's dict."""
    is_read: bool = False
    """The program itself has read it since."""
    writes = True

    @property
    def key(self) -> Hashable:
        return "attribute", id(self.value), self.name

    def emit(self, g: Codegen) -> None:
        new = self.value.attrs.get(self.name)
        if new is None or self.recreated:
            emit_deletion(g, self.value, self.name)
        if new is not None:
            g.emit(self.value)
            emit_attribute(g, self.value.cls, self.name, new)
            g.body.op("POP_TOP")


def emit_native(native: Native, base: type, g: Codegen) -> None:
    """Fill the object on the stack through the methods of the container, not of its class."""
    if isinstance(native, Dict):
        for key, value in native.items(g.state).values():
            g.body.const(vars(base)["__setitem__"]).op("COPY", 2)
            g.emit(key)
            g.emit(value)
            g.body.call(3).op("POP_TOP")
        return
    g.body.const(list.extend if isinstance(native, List) else set.update).op("COPY", 2)
    g.emit(native)
    g.body.call(2).op("POP_TOP")


MODELLED_SETATTR: dict[Callable[..., object], Callable[[CaptureState, Object, str, Value], bool]] = {}
"""A `__setattr__` -> whether it acts like `object.__setattr__` for this name and value."""
MODELLED_GETATTR: dict[Callable[..., object], Callable[[CaptureState, Object, str], Value | None]] = {}
"""A `__getattr__` -> what it finds, or the AttributeError that it raises; None if the model does not apply."""
DescriptorModel = Callable[[CaptureState, Value, str, Any], "Value | None"]
DESCRIPTORS: dict[type, DescriptorModel] = {}
"""Type of a descriptor of CPython -> its value, or None if the model does not apply."""


def is_plain_write(s: CaptureState, setattr_: object, value: Object, name: str, new: Value | None) -> bool:
    model = MODELLED_SETATTR.get(setattr_) if type(setattr_) is types.FunctionType else None
    return model is not None and new is not None and model(s, value, name, new)


def modelled_descriptor(s: CaptureState, value: Value, name: str, raw: object) -> Value | None:
    model = DESCRIPTORS.get(type(raw))
    return model(s, value, name, raw) if model is not None else None


def new_object(s: CaptureState, cls: type) -> Object:
    """A bare instance, as `object.__new__(cls)` makes it."""
    value = Object(cls)
    if issubclass(cls, dict):
        value.native = Dict({}, OrderedDict if issubclass(cls, OrderedDict) else dict)
    elif issubclass(cls, list):
        value.native = List([])
    elif issubclass(cls, (set, frozenset)):
        value.native = Set({}, set if issubclass(cls, set) else frozenset)
    elif issubclass(cls, BaseException):
        value.attrs["args"] = Tuple([])
    return value


def new_exception(s: CaptureState, cls: type, args: tuple[object, ...]) -> Value:
    value = Object(cls)
    fill(s, value, [arg if isinstance(arg, Value) else s.wrap(arg, None) for arg in args], {}, init=True)
    return value


def guard_protocol(s: CaptureState, value: Value, special: str) -> None:
    """Guard how the class of `value` reads or writes attributes, once per class.

    A method of the program is guarded when it is called; here, that there is none or that it is modelled.
    """
    key = (value.python_type(), special)
    if key in s.classes.guarded:
        s.guard_type(value)  # the guard is on a path that may lead to another class next time
        return
    base = s.class_source(value)
    if base is None:
        return
    s.classes.guarded.add(key)
    found = s.classes.lookup(key[0], special)
    if found is None:
        s.guard(AttrSource(base, special), GuardKind.ABSENT)
    elif type(found[1]) is types.FunctionType and not found[1].__globals__.get("__name__", "").startswith("torch."):
        s.class_attr(value, special, found[1]).constant(s)
    elif type(found[1]) in (SLOT_WRAPPER, types.FunctionType):
        s.guard(AttrSource(base, special), GuardKind.IS, s.reference(found[1]))


def get_attr(s: CaptureState, value: Value, name: str, site: CallSite) -> Value:
    """`value.name`."""
    cls = value.python_type()
    guard_protocol(s, value, "__getattribute__")
    guard_protocol(s, value, "__getattr__")
    custom = s.classes.lookup(cls, "__getattribute__")
    if custom is not None and type(custom[1]) is types.FunctionType:
        function = s.class_attr(value, "__getattribute__", custom[1])
        return remembered(s, value, name, lambda: function.call(s, [value, s.const(name)], {}))
    if custom is not None and custom[0] in OWN_READS:
        raise UnsupportedAttribute(name=name, type=value.type_name(), why="its lookup is written in C")
    hook = s.classes.lookup(cls, "__getattr__")
    if hook is not None and is_computed(s, cls, name):
        return computed_attr(s, value, name, hook[1], site)
    found = find_attr(s, value, name, site)
    return found if found is not None else missing_attr(s, value, name, site)


def computed_attr(s: CaptureState, value: Value, name: str, hook: object, site: CallSite) -> Value:
    """What a property gives, or `__getattr__` where it raises AttributeError."""
    if type(hook) is not types.FunctionType or hook not in MODELLED_GETATTR:
        site = NOT_RESUMABLE  # a break would be resumed outside of this `try`; torch's hook answers with the same error
    try:
        found = find_attr(s, value, name, site)
        if found is not None:
            return found
    except Raised as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
    return s.class_attr(value, "__getattr__", hook).call(s, [value, s.const(name)], {}, site)


def remembered(s: CaptureState, value: Value, name: str, read: Callable[[], Value]) -> Value:
    """The result of the program's `__getattribute__`, interpreted once if nothing was written since."""
    known = s.part(AttributeTables).reads
    key = (id(value), name)
    if s.effects.wrote_outside or value.source is None:
        return fallback(s, value, name, read)
    if key in known:
        return known[key][1]
    before = (s.counters.unguarded, len(s.recorder.calls), s.effects.snapshot())
    found = fallback(s, value, name, read)
    if before == (s.counters.unguarded, len(s.recorder.calls), s.effects.snapshot()) and (
        found.source or found.is_constant
    ):
        known[key] = (value, found)
    return found


def fallback(s: CaptureState, value: Value, name: str, first: Callable[[], Value]) -> Value:
    """`first()`, or `__getattr__` if that raises AttributeError."""
    try:
        found: Value = first()
        return found
    except Raised as raised:
        has = s.classes.lookup(value.python_type(), "__getattr__")
        if has is None or not issubclass(raised.value.python_type(), AttributeError):
            raise
    return missing_attr(s, value, name)


def missing_attr(s: CaptureState, value: Value, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
    """The result of `__getattr__`, or AttributeError."""
    hook = s.classes.lookup(value.python_type(), "__getattr__")
    if hook is None:
        if answers_itself(value.python_type()) and hasattr(value.real(), name):
            raise UnsupportedAttribute(name=name, type=value.type_name(), why="its class looks attributes up in C")
        s.guard_type(value)
        guard_lacks(s, value, name)
        raise s.error(AttributeError, f"'{value.type_name()}' object has no attribute '{name}'")
    model = MODELLED_GETATTR.get(hook[1]) if type(hook[1]) is types.FunctionType else None
    modelled = model(s, value, name) if model is not None and isinstance(value, Object) else None
    if modelled is not None:
        return modelled
    if value.source is not None:
        guard_lacks(s, value, name)
    return s.class_attr(value, "__getattr__", hook[1]).call(s, [value, s.const(name)], {}, site)


def answers_itself(cls: type) -> bool:
    """Whether the class has a lookup of its own that is written in C, and may find what is in no dict."""
    lookup = cls.__getattribute__
    return type(lookup) is types.WrapperDescriptorType and lookup is not object.__getattribute__


def find_attr(s: CaptureState, value: Value, name: str, site: CallSite = NOT_RESUMABLE) -> Value | None:
    """`object.__getattribute__`; None if it raises AttributeError."""
    found = s.classes.lookup(value.python_type(), name)
    raw = found[1] if found is not None else MISSING
    if raw is not MISSING and is_data_descriptor(s, raw) and s.classes.lookup(type(raw), "__get__") is not None:
        return from_descriptor(s, value, name, raw, site)
    own = value.instance_attr(s, name) if isinstance(value, Object) else attr_of_container(s, value, name)
    if own is not None:
        if raw is MISSING:
            s.class_lacks(value, name)
        return own
    if raw is MISSING:
        is_dict = name == "__dict__" and isinstance(value, Object) and isinstance(value.attrs, OwnItems)
        return instance_dict(s, value) if is_dict else None  # type: ignore[arg-type]
    s.guard_type(value)
    s.hides_nothing(value, name)
    return from_class(s, value, name, raw, site)


def attr_of_container(s: CaptureState, value: Value, name: str) -> Value | None:
    """From the instance dict of a container (OrderedDict)."""
    made = value.attrs.get(name) if isinstance(value, Dict) else None
    content = getattr(value.real(), "__dict__", None) if value.python_type().__dictoffset__ else None
    if type(content) is not dict or name not in content:
        return made
    return s.wrap(content[name], DictAttrSource(value.source, name) if value.source is not None else None)


def accessor_value(s: CaptureState, value: Value, name: str, accessor: object, part: str) -> Value:
    """A function of a property, with its path through the class."""
    cache = s.classes.accessors
    key = (value.python_type(), name, part)
    if key not in cache:
        found = s.classes.lookup(value.python_type(), name)
        assert found is not None
        holder = s.class_attr(value, name, found[1])
        if isinstance(holder, MadeDescriptor):
            return holder.part(part)
        source = holder.source
        cache[key] = s.wrap(accessor, AttrSource(source, part) if source is not None else None)
    return cache[key]


def from_descriptor(s: CaptureState, value: Value, name: str, raw: Any, site: CallSite) -> Value | None:
    """A data descriptor: property, slot, or one of CPython's."""
    if name == "__class__" and TWIN_OF in value.python_type().__dict__:
        return original_class(s, value)
    if type(raw) is property or (isinstance(raw, property) and s.classes.gets_like_property(type(raw))):
        s.guard_type(value)
        if raw.fget is None:
            raise lacks_accessor(s, value, name, "getter")
        return accessor_value(s, value, name, raw.fget, "fget").call(s, [value], {}, site)
    if name == "__class__":
        return class_of(s, value)
    if isinstance(value, Object) and name in value.attrs and isinstance(raw, SLOT | GETSET):
        return value.attrs[name]
    if name == "__dict__" and isinstance(value, Object):
        return instance_dict(s, value)
    if type(raw) in (SLOT, GETSET):
        return from_slot(s, value, name, raw)
    return call_get(s, value, name, raw, site)


def from_slot(s: CaptureState, value: Value, name: str, raw: Any) -> Value | None:
    real = value.real()
    modelled = modelled_descriptor(s, value, name, raw)
    if modelled is not None:
        return modelled
    if isinstance(value, Object) and value.foreign is not None and is_written_in_c(raw.__objclass__):
        return value.foreign.read(name)
    if real is MISSING:
        if not isinstance(value, Object) and is_written_in_c(raw.__objclass__):
            why = "it is a field of a class written in C"
            raise UnsupportedAttribute(name=name, type=value.type_name(), why=why)
        return field_of(s, value, name) if isinstance(value, Object) and value.is_field(name) else None
    s.guard_type(value)
    try:
        content = raw.__get__(real, type(real))
    except AttributeError:
        return None
    return s.wrap(content, AttrSource(value.source, name) if value.source is not None else None)


def is_in_dict(value: Object, name: str) -> bool:
    """Whether the instance's dict keeps what `attrs` holds under this name."""
    return not value.is_field(name) and not is_slot(value.cls, name)


def instance_dict(s: CaptureState, value: Object) -> Value:
    """`obj.__dict__`: a dict whose items are the attributes of the object."""
    if isinstance(value.attrs, OwnItems):
        return value if value.attrs.native is value.native else value.attrs.native
    known = s.part(AttributeTables).instance_dicts
    found = known.get(id(value))
    if found is None:
        if value.original is not MISSING and value.source is not None:
            source = AttrSource(value.source, "__dict__")
            keys = tuple(plain_dict(value.original))
            if any([is_slot(value.cls, name) for name in keys]):
                raise value.unsupported("access by attribute", "a slot has the name of a key of its `__dict__`")
            s.guard(source, GuardKind.DICT_KEYS, keys)
        loaded = {name: value.instance_attr(s, name) for name in value.instance_names()}
        fields = {name: item for name, item in value.attrs.items() if not is_in_dict(value, name)}
        value.attrs = {**fields, **loaded, **{name: None for name in value.attrs if name not in {*fields, *loaded}}}
        found = known[id(value)] = Dict(InstanceItems(s, value))  # type: ignore[arg-type]
    return found


@final
class InstanceItems(AttributeItems[Object]):
    """The items of an instance's dict; writes go to the attributes of the object."""

    def __getitem__(self, name: str) -> tuple[Value, Value]:
        found = self.owner.attrs.get(name)
        if found is None or not is_in_dict(self.owner, name):
            raise KeyError(name)
        return Constant(name), found

    def __setitem__(self, name: str, item: tuple[Value, Value]) -> None:
        if type(name) is not str or is_slot(self.owner.cls, name):
            raise self.owner.unsupported("change of `__dict__`", "a key is no string, or the name of a slot")
        self.owner.put_attr(self.state, name, item[1])

    def __delitem__(self, name: str) -> None:
        self[name]
        self.owner.put_attr(self.state, name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(
            [name for name, value in self.owner.attrs.items() if value is not None and is_in_dict(self.owner, name)]
        )

    def __len__(self) -> int:
        return len(list(iter(self)))

    def popitem(self) -> tuple[str, tuple[Value, Value]]:
        return (name := next(reversed(list(self)), "")), self.pop(name)


def takes_dict(s: CaptureState, value: Object, items: Dict) -> bool:
    """`value.__dict__ = items`, if the program has not seen the dict that it had."""
    seen = id(value) in s.part(AttributeTables).instance_dicts or isinstance(value.attrs, OwnItems)
    if seen or items.cls is not dict or value.native is not None or value.original is not MISSING:
        return False
    s.counters.change()
    value.attrs = OwnItems(s, items)
    return True


def share_dict(s: CaptureState, value: Object) -> None:
    """`value.__dict__ = value`, for a dict; the attributes that it had are lost, as in Python."""
    assert isinstance(value.native, Dict)
    value.attrs = OwnItems(s, value.native)


def from_class(s: CaptureState, value: Value, name: str, raw: object, site: CallSite) -> Value:
    """A class attribute other than a data descriptor, read through an instance."""
    kind = type(raw)
    if kind is types.FunctionType or kind is Dispatcher:
        return BoundMethod(s.class_attr(value, name, raw), value)
    if kind in (staticmethod, classmethod):
        return unbound(s, s.class_source(value), value.python_type(), name, raw, lambda: class_of(s, value))
    if kind in (types.MethodType, types.BuiltinFunctionType):
        return s.class_attr(value, name, raw)
    if isinstance(raw, types.ClassMethodDescriptorType):
        s.guard_type(value)
        return native_class_method(s, value.python_type(), raw, lambda: class_of(s, value))
    if kind in BOUND_TYPES:
        return BoundMethod(s.class_attr(value, name, raw), value)
    if s.classes.lookup(kind, "__get__") is not None:
        return call_get(s, value, name, raw, site)
    return s.class_attr(value, name, raw)


def class_of(s: CaptureState, value: Value) -> Value:
    """`type(value)` as a value."""
    s.guard_type(value)
    return s.wrap(value.python_type(), s.class_source(value))


def original_class(s: CaptureState, value: Value) -> Value:
    """The class of the module that was compiled, which its twin gives as its own."""
    s.guard_type(value)
    source = s.class_source(value)
    return s.wrap(value.python_type().__mro__[1], MroSource(source, 1) if source is not None else None)


def unbound(s: CaptureState, base: Source | None, cls: type, name: str, raw: Any, owner: Callable[[], Value]) -> Value:
    """A static or class method of `cls` (at `base`), read through the class or an instance."""
    cache = s.classes.unbound
    function = cache.get((cls, name))
    static = type(raw) is staticmethod
    if not static and BINDS_TWICE and type(raw.__func__) not in PLAIN_FUNCTIONS and hasattr(raw.__func__, "__get__"):
        raise UnsupportedAttribute(name=name, type=cls.__name__, why="a class method of another descriptor binds it")
    if function is None and (held := s.classes.made_attr(cls, name)) is not None:
        function = held.part("__func__") if isinstance(held, MadeDescriptor) else held
    if function is None:
        _, base = s.attribute_base(cls, base, name)
        source: Source | None = AttrSource(base, name) if base is not None else None
        if source is not None and not static:
            source = MethodFuncSource(source)
        function = s.wrap(raw.__func__, source)
        if source is not None:
            cache[cls, name] = function
    return function if static else BoundMethod(function, owner())


def native_class_method(
    s: CaptureState, cls: type, raw: types.ClassMethodDescriptorType, owner: Callable[[], Value]
) -> Value:
    """A class method of `cls` that is written in C; its handler, if there is one, gets the class first."""
    if handler_of(raw) is None and cls not in s.classes.made:
        return s.wrap(raw.__get__(None, cls), None)
    return BoundMethod(s.wrap(raw, None), owner())


def call_get(s: CaptureState, value: Value, name: str, raw: object, site: CallSite) -> Value:
    """A descriptor with a `__get__` of its own."""
    found = s.classes.lookup(type(raw), "__get__")
    if found is None:
        return s.class_attr(value, name, raw)
    modelled = modelled_descriptor(s, value, name, raw)
    if modelled is not None:
        return modelled
    if type(found[1]) is not types.FunctionType and handler_of(raw) is not None:  # a function of Cython
        return BoundMethod(s.class_attr(value, name, raw), value)
    if type(found[1]) is not types.FunctionType:
        raise UnsupportedAttribute(name=name, type=value.type_name(), why=f"its class is {type(raw).__name__}")
    descriptor = s.class_attr(value, name, raw)
    return s.call_special(descriptor, "__get__", [value, class_of(s, value)], {}, site)


@wraps(object)
def wrap_object(s: CaptureState, real: Any, source: Source | None) -> Value:
    """An object of any other type."""

    def make() -> Value:
        value = Object(type(real), source, real)
        base = next((kind for kind in CONTAINERS if kind in type(real).__mro__), None)
        if base is not None:
            value.native = native_of(s, real, base, source)
            if plain_dict(real) is real and isinstance(value.native, Dict):
                value.attrs = OwnItems(s, value.native)
                if source is not None:
                    s.identities.other_paths.append((value, AttrSource(source, "__dict__")))
        if issubclass(type(real), threading.local) and source is not None:  # its dict is that of the thread
            s.guard(source, GuardKind.IS, s.reference(real))
            items = s.wrap(real.__dict__, CallSource(GETATTR, (s.reference(real), "__dict__")))
            assert isinstance(items, Dict)
            value.attrs = OwnItems(s, items)
        return value

    return s.identities.same_object(real, source, make)
