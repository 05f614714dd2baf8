"""Classes, `super()`, and making instances.

Output(last=x)       a bare instance, then `__init__` inlined
Mode("a")            an enum member: looked up now
super().forward(x)   the next `forward` on the method resolution order
"""

from __future__ import annotations

import builtins
import enum
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, final

from kiln.capture.interpreter.breaks import Raised, UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.class_lookups import Found
from kiln.capture.interpreter.core import (
    MADE_WITH_CLASS,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Value,
    handles,
    wraps,
)
from kiln.capture.interpreter.frame import read_variable, running_frame
from kiln.capture.interpreter.native_calls import call_handler, natives
from kiln.capture.interpreter.pure import is_confined_class, is_pure_class, is_written_in_c
from kiln.capture.interpreter.variables.attribute_items import AttributeItems
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.builtin import Unique, call_unknown
from kiln.capture.interpreter.variables.class_changes import set_outer_attr
from kiln.capture.interpreter.variables.class_entries import GETSET, is_data_descriptor
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.exception import fill
from kiln.capture.interpreter.variables.function import handler_of, made_now
from kiln.capture.interpreter.variables.made_class import NAMING, emit_made_class, set_made_attr
from kiln.capture.interpreter.variables.made_descriptor import MadeDescriptor
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import (
    Object,
    class_of,
    from_class,
    from_descriptor,
    guard_protocol,
    native_class_method,
    new_object,
    unbound,
)
from kiln.capture.interpreter.variables.sequence import Tuple, all_items
from kiln.native._frames import Dispatcher
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import HEAP_TYPE
from kiln.runtime.guards.source import (
    AttrSource,
    ClassFieldSource,
    DictAttrSource,
    ItemSource,
    MroSource,
    Source,
)
from kiln.support.records import dataclass


@final
class Class(Unique):
    """A class from outside, or made in the frame."""

    __slots__ = ("bases", "cls", "metaclass", "set_later")

    def __init__(self, cls: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.bases: list[Value] = []
        self.metaclass: Value | None = None
        """Of a class made here, if its metaclass is the program's."""
        self.set_later: dict[str, bool] = {}
        """Names set after a class was made here, and whether the class had them before."""

    def real(self) -> object:
        return self.cls

    def constant(self, s: CaptureState) -> type:
        if not self._checked and self.source is not None:
            s.classes.sources.setdefault(self.cls, self.source)
        self.check(s)
        return self.cls

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        cls = self.constant(s)
        custom = s.classes.lookup(type(cls), "__getattribute__")
        if custom is not None and type(custom[1]) is types.FunctionType:
            return s.class_attr(self, "__getattribute__", custom[1]).call(s, [self, s.const(name)], {}, site)
        return self.own_lookup(s, name, site)

    def own_lookup(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        """`type.__getattribute__`, then the `__getattr__` of the metaclass."""
        cls = self.constant(s)
        if cls in s.classes.made and name == "__subclasses__":
            raise UnsupportedAttribute(name=name, type=self.type_name(), why="the class was made here")
        if name == "__dict__" and cls in s.classes.made:
            return Dict(ClassItems(s, self), types.MappingProxyType)  # type: ignore[arg-type]
        if name == "__dict__":
            return self._field(s, name)
        meta = s.classes.lookup(type(cls), name)
        if name in ANNOTATIONS and cls in s.classes.made and (own := own_annotations(s, cls, name)) is not None:
            return own
        found = s.classes.lookup(cls, name)
        if meta is not None and not is_plain_name(name, found) and is_data_descriptor(s, meta[1]):
            return self._meta_attr(s, name, meta[1], site)
        if found is not None:
            value = self.own_attr(s, name, found[1])
            getter = s.classes.lookup(type(found[1]), "__get__")
            if getter is not None and type(getter[1]) is types.FunctionType:
                return s.call_special(value, "__get__", [Constant(None), self], {}, site)
            return value
        hook = s.classes.lookup(type(cls), "__getattr__") if meta is None else None
        if hook is not None and type(hook[1]) is types.FunctionType:
            return s.class_attr(self, "__getattr__", hook[1]).call(s, [self, s.const(name)], {}, site)
        if meta is None:
            raise s.error(AttributeError, f"type object '{cls.__name__}' has no attribute '{name}'")
        return from_class(s, self, name, meta[1], site)

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        """By the metaclass (`Color["RED"]`) or by `__class_getitem__` (`Sequence[int]`)."""
        cls: Any = self.constant(s)
        own = s.classes.lookup(cls, "__class_getitem__")
        of_metaclass = s.classes.lookup(type(cls), "__getitem__") is not None
        if own is None and not of_metaclass and cls is not type:
            raise s.error(TypeError, f"type '{cls.__name__}' is not subscriptable")
        if of_metaclass:
            return super().get_item(s, key, site)
        if own is not None and isinstance(getattr(own[1], "__func__", None), types.FunctionType):
            return self.own_attr(s, "__class_getitem__", own[1]).call(s, [key], {}, site)
        if cls in s.classes.made:
            raise UnsupportedCall(function=f"{cls.__name__}.__class_getitem__", why="the class was made here")
        return s.wrap(cls[key.constant(s)], None)

    def _meta_attr(self, s: CaptureState, name: str, raw: Any, site: CallSite) -> Value:
        if type(raw) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            if not hasattr(self.cls, name):  # `__abstractmethods__` of most classes
                raise s.error(AttributeError, name)
            return self._field(s, name)
        value = from_descriptor(s, self, name, raw, site)
        if value is None:
            raise s.error(AttributeError, name)
        return value

    def _field(self, s: CaptureState, name: str) -> Value:
        """`__name__`, `__dict__`, `__mro__` and the like, which can be assigned or changed."""
        if name == "__dict__" and self.cls in s.classes.changed:
            raise UnsupportedAttribute(name=name, type=self.type_name(), why="an attribute was set in the frame")
        path = self._path(s)
        return s.wrap(getattr(self.cls, name), ClassFieldSource(path, name) if path is not None else None)

    def _path(self, s: CaptureState) -> Source | None:
        """A path to the class; one that cannot change needs none."""
        if not self.cls.__flags__ & HEAP_TYPE:
            return None
        return self.source if self.source is not None else s.classes.path(self.cls)

    def own_attr(self, s: CaptureState, name: str, raw: Any) -> Value:
        """The attribute `name`, given its entry `raw` in the method resolution order."""
        kind = type(raw)
        base = self._path(s)
        heap = bool(self.cls.__flags__ & HEAP_TYPE)
        if kind in (staticmethod, classmethod):
            return unbound(s, base, self.cls, name, raw, lambda: self)
        if (made := s.classes.made_attr(self.cls, name)) is not None:
            return made
        if kind is types.ClassMethodDescriptorType:
            return native_class_method(s, self.cls, raw, lambda: self)
        if kind is types.BuiltinFunctionType:
            return s.wrap(getattr(self.cls, name), None)
        if self.cls in s.classes.made and (outer := s.classes.outer_base(self.cls, name)) is not None:
            return Class(outer, s.classes.path(outer)).own_attr(s, name, raw)
        cache = s.classes.own_attributes
        value = cache.get((self.cls, name))
        if value is None:
            base = base if name not in MADE_WITH_CLASS else None
            value = s.wrap(raw, s.class_path(base, self.cls, name, raw) if base is not None else None)
            if base is not None or not heap or name in MADE_WITH_CLASS:
                cache[self.cls, name] = value
        return value

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        cls = self.constant(s)
        handler = handler_of(cls)
        if handler is not None:
            return call_handler(s, cls, handler, args, kwargs)
        if is_pure_class(cls):
            return call_unknown(s, cls, args, kwargs)
        meta = s.classes.lookup(type(cls), "__call__")
        if meta is not None and type(meta[1]) is types.FunctionType:
            return call_metaclass(s, self, meta[1], args, kwargs)
        if meta is not None and isinstance(meta[1], type):  # a class does not bind: of a `TypedDict`, it is `dict`
            return s.class_attr(self, "__call__", meta[1]).call(s, args, kwargs, site)
        return construct(s, self, args, kwargs, site)

    def construct(self, s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        """`type.__call__`."""
        return construct(s, self, args, kwargs, NOT_RESUMABLE)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        special = "__setattr__" if value is not None else "__delattr__"
        custom = s.classes.lookup(type(self.cls), special)
        if custom is not None and type(custom[1]) is types.FunctionType:
            args = [s.const(name), *([value] if value is not None else [])]
            s.call_special(self, special, args, {}, site.discarding())
        elif not self.set_own_attr(s, name, value):
            super().set_attr(s, name, value, site)

    def set_own_attr(self, s: CaptureState, name: str, value: Value | None) -> bool:
        """`type.__setattr__` and `type.__delattr__`; False if they are not modelled."""
        if self.constant(s) not in s.classes.made:
            return set_outer_attr(s, self, self.cls, name, value)
        had = name in s.classes.made[self.cls]
        if not set_made_attr(s, self.cls, name, value):
            return False
        if value is not None and name not in NAMING:
            self.set_later.setdefault(name, had)
        else:
            self.set_later.pop(name, None)
        return True

    def emit(self, g: Codegen) -> None:
        if self.cls in g.state.classes.made:
            emit_made_class(g, self, self.cls, self.bases, self.metaclass, self.set_later)
        else:
            g.body.const(self.cls)


ANNOTATIONS = ("__annotations__", "__annotate__")


def own_annotations(s: CaptureState, cls: type, name: str) -> Value | None:
    """Of a class made in the frame; from CPython 3.14 on, a function of the class makes the annotations when they are
    asked for. None: it has none of its own."""
    names = s.classes.made[cls]
    annotate = names.get("__annotate_func__")
    if name == "__annotate__" or name in names or annotate is None:
        return annotate if name == "__annotate__" else names.get(name)
    made = names[name] = made_now(s, annotate)
    return made


def is_plain_name(name: str, found: Found | None) -> bool:
    """Whether the names of a class body hold what `type` gives: a built-in class may have it elsewhere."""
    return name in ("__doc__", "__module__") and found is not None and not isinstance(found[1], GETSET)


def call_metaclass(s: CaptureState, value: Class, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Value:
    """A metaclass with a `__call__` of its own."""
    if issubclass(value.cls, enum.Enum) and value.cls not in s.classes.made and value.cls._member_map_:
        try:
            member = value.cls(*[arg.constant(s) for arg in args])
            path = value.source or s.classes.path(value.cls)
            if not isinstance(member, value.cls):  # a flag with bits that it does not know, kept as a number
                return s.wrap(member, None)
            name = vars(member).get("_name_")
            if path is None or name not in value.cls._member_map_:
                return Constant(member, None)
            return Constant(member, ItemSource(AttrSource(path, "_member_map_"), name))
        except ValueError as error:
            raise s.error(ValueError, *error.args) from None
    return s.class_attr(value, "__call__", function).call(s, [value, *args], kwargs)


def construct(s: CaptureState, value: Class, args: Args, kwargs: Kwargs, site: CallSite) -> Value:
    """`type.__call__`: `__new__`, then `__init__` if that made an instance."""
    cls = value.cls
    new = s.classes.lookup(cls, "__new__")
    init = s.classes.lookup(cls, "__init__")
    made: Value
    if new is not None and new[0] is property:
        made = MadeDescriptor(cls, {})
        if init is not None and type(init[1]) is not types.FunctionType:
            s.wrap(init[1], None).call(s, [made, *args], kwargs)
    elif issubclass(cls, BaseException) and new is not None and type(new[1]) is types.BuiltinFunctionType:
        made = new_exception(s, value, args, kwargs)
    elif (
        new is None
        or new[1] is object.__new__
        or (handler_of(new[1]) is None and type(new[1]) is types.BuiltinFunctionType)
    ):
        if not can_be_bare(cls) or (new is not None and new[0] is not object and new[0] not in BARE_BASES):
            return construct_foreign(s, value, args, kwargs, site)
        if cls.__flags__ & IS_ABSTRACT:
            raise abstract_error(s, cls)
        refuse_finalizer(s, cls)
        made = new_object(s, cls)
        if args or kwargs:
            refuse_in_new(s, made)
    else:
        made = value.own_attr(s, "__new__", new[1]).call(s, [value, *args], kwargs)
    if init is not None and not callable(init[1]) and not hasattr(type(init[1]), "__get__"):
        raise s.error(TypeError, f"'{type(init[1]).__name__}' object is not callable")
    if init is not None and type(init[1]) is types.FunctionType and issubclass(made.python_type(), cls):
        result = value.own_attr(s, "__init__", init[1]).call(s, [made, *args], kwargs, site.discarding(made))
        refuse_result(s, result)
    elif init is not None and isinstance(made, Object) and has_contents(made) and init[1] is not object.__init__:
        s.wrap(init[1], None).call(s, [made, *args], kwargs)
    return made


def has_contents(made: Object) -> bool:
    """Whether an `__init__` written in C fills it."""
    return made.native is not None or issubclass(made.cls, types.SimpleNamespace)


def refuse_result(s: CaptureState, result: Value) -> None:
    """What `type.__call__` raises where `__init__` returns something."""
    if not result.is_constant or result.constant(s) is not None:
        raise s.error(TypeError, f"__init__() should return None, not '{result.type_name()}'")


def refuse_in_new(s: CaptureState, made: Value) -> None:
    """What `object.__new__` raises where it gets more than the class."""
    cls = made.python_type()
    new, init = method_of(s, made, "__new__"), method_of(s, made, "__init__")
    if issubclass(cls, tuple(BARE_BASES)):  # their own `__new__` takes what `__init__` takes
        return
    if new is not object.__new__:
        raise s.error(TypeError, "object.__new__() takes exactly one argument (the type to instantiate)")
    if init is object.__init__:
        raise s.error(TypeError, f"{cls.__name__}() takes no arguments")


def refuse_in_init(s: CaptureState, made: Value) -> None:
    """What `object.__init__` raises where it gets more than the instance."""
    new, init = method_of(s, made, "__new__"), method_of(s, made, "__init__")
    expected = "takes exactly one argument (the instance to initialize)"
    if init is not object.__init__:
        raise s.error(TypeError, f"object.__init__() {expected}")
    if new is object.__new__:
        raise s.error(TypeError, f"{made.type_name()}.__init__() {expected}")


def method_of(s: CaptureState, made: Value, special: str) -> object:
    """What the class of `made` has under this name; guarded."""
    guard_protocol(s, made, special)
    found = s.classes.lookup(made.python_type(), special)
    return found[1] if found is not None else None


def refuse_finalizer(s: CaptureState, cls: type) -> None:
    """Objects made in the frame may never be made in Python, and none is freed while tracing."""
    if s.classes.lookup(cls, "__del__") is not None:
        raise UnsupportedCall(function=cls.__qualname__, why="its `__del__` is called when an instance is freed")


def new_exception(s: CaptureState, value: Class, args: Args, kwargs: Kwargs) -> Value:
    """An exception whose `__new__` is written in C; so is its `__init__`, or it is called afterwards."""
    init = s.classes.lookup(value.cls, "__init__")
    refuse_finalizer(s, value.cls)
    made = new_object(s, value.cls)
    fill(s, made, args, kwargs, init=init is None or type(init[1]) is not types.FunctionType)
    return made


def construct_foreign(s: CaptureState, value: Class, args: Args, kwargs: Kwargs, site: CallSite) -> Value:
    """An instance of a class written in C, or of one of the program that derives from it."""
    cls = value.cls
    if is_confined_class(cls):
        return natives(s).call(cls, args, kwargs)
    if cls.__module__ == "torch.return_types" and issubclass(cls, tuple) and len(args) == 1 and not kwargs:
        return struct_sequence(s, cls, all_items(s, args[0]))
    base = next(kind for kind in cls.__mro__ if is_written_in_c(kind))
    if not is_confined_class(base):
        raise UnsupportedCall(function=cls.__qualname__, why="its `__new__` is written in C and not supported")
    if cls.__flags__ & IS_ABSTRACT:
        raise abstract_error(s, cls)
    refuse_finalizer(s, cls)
    made = natives(s).construct(cls, base, args, kwargs)
    init = s.classes.lookup(cls, "__init__")
    if init is not None and type(init[1]) is types.FunctionType:
        result = value.own_attr(s, "__init__", init[1]).call(s, [made, *args], kwargs, site.discarding(made))
        refuse_result(s, result)
    elif init is not None and init[0] is not object:
        natives(s).call(init[1], [made, *args], kwargs)
    return made


def struct_sequence(s: CaptureState, cls: type, items: list[Value]) -> Value:
    """What `torch.max` and its kin return: a tuple with names for its items."""
    count: int = cls.n_fields  # type: ignore[attr-defined]
    if len(items) != count:
        raise s.error(
            TypeError, f"{cls.__module__}.{cls.__name__}() takes a {count}-sequence ({len(items)}-sequence given)"
        )
    return Tuple(items, cls)


def abstract_error(s: CaptureState, cls: type) -> Raised:
    """What Python raises for an instance of a class with abstract methods."""
    try:
        object.__new__(cls)
    except TypeError as error:
        return s.error(TypeError, *error.args)
    raise UnsupportedCall(function=cls.__qualname__, why="it has abstract methods")


def can_be_bare(cls: type) -> bool:
    """Whether an instance consists of its dict and, for containers, their contents."""
    for base in cls.__mro__[:-1]:
        if base in BARE_BASES or not is_written_in_c(base):
            continue
        return False
    return True


BARE_BASES = frozenset({dict, list, set, OrderedDict, types.SimpleNamespace}) | {
    cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, BaseException)
}
"""Built-in classes whose instances `new_object` can make."""


BOUND_BY_SUPER = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType, Dispatcher)
"""Attributes that `super()` calls with the instance first."""
IS_ABSTRACT = 1 << 20
"""The flag of classes with abstract methods."""
PARTS: dict[type, str] = {staticmethod: "__func__", classmethod: "__func__", property: "fget"}
"""The attribute in which a descriptor keeps its function."""


@final
class ClassItems(AttributeItems[Class]):
    """The names of a class made here, as `Dict` holds them."""

    def __getitem__(self, name: str) -> tuple[Value, Value]:
        raw = self.owner.cls.__dict__[name]
        held = self.state.classes.made[self.owner.cls].get(name)
        return Constant(name), held if held is not None else self.state.wrap(raw, None)

    def __setitem__(self, name: str, item: tuple[Value, Value]) -> None:
        raise self.owner.unsupported("change of `__dict__`", "it is a mappingproxy")

    def __delitem__(self, name: str) -> None:
        raise self.owner.unsupported("change of `__dict__`", "it is a mappingproxy")

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.owner.cls.__dict__))

    def __len__(self) -> int:
        return len(self.owner.cls.__dict__)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Super(Value):
    """`super(cls, self)`."""

    cls: type
    self_: Value

    def python_type(self) -> type:
        return super

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        order = self.start().__mro__
        first = order.index(self.cls) + 1
        for position in range(first, len(order)):
            if name in order[position].__dict__:
                return self._bind(s, first, position, name, order[position].__dict__[name], site)
        raise s.error(AttributeError, f"'super' object has no attribute '{name}'")

    def start(self) -> type:
        """The class whose method resolution order is searched."""
        bound = self.bound_class()
        return bound.cls if bound is not None else self.self_.python_type()

    def bound_class(self) -> Class | None:
        """The class, if `self` is one that derives from `cls`; in a method of a metaclass it is an instance."""
        return self.self_ if isinstance(self.self_, Class) and self.cls in self.self_.cls.__mro__ else None

    def _path(self, s: CaptureState, first: int, position: int, name: str) -> Source | None:
        """The path to `name` on the class at `position`; the classes from `first` on are guarded to lack it."""
        base: Source | None
        bound = self.bound_class()
        if bound is not None:
            bound.constant(s)
            base = bound.source or s.classes.path(bound.cls)
        else:
            s.guard_type(self.self_)
            base = s.class_source(self.self_)
        order = (start := self.start()).__mro__
        if start in s.classes.made:
            return made_path(s, order, first, position, name)
        if base is None:
            return None
        for between in range(first, position):
            s.guard(DictAttrSource(MroSource(base, between), name), GuardKind.ABSENT)
        return DictAttrSource(MroSource(base, position), name) if order[position].__flags__ & HEAP_TYPE else None

    def _bind(self, s: CaptureState, first: int, position: int, name: str, raw: Any, site: CallSite) -> Value:
        bound, start = self.bound_class(), self.start()
        if isinstance(raw, types.ClassMethodDescriptorType):
            return native_class_method(s, start, raw, lambda: s.wrap(start, None))
        part = next((name for kind, name in PARTS.items() if isinstance(raw, kind)), None)
        cache = s.classes.through_super
        key = (start, position, name)
        function = cache.get(key)
        if function is None and (made := s.classes.made.get(start.__mro__[position])) is not None:
            held = made.get(name)
            function = held.part(part) if isinstance(held, MadeDescriptor) and part is not None else held
        if function is None:
            path = self._path(s, first, position, name)
            source = AttrSource(path, part) if path is not None and part is not None else path
            function = s.wrap(getattr(raw, part) if part is not None else raw, source)
            if path is not None:
                cache[key] = function
        if isinstance(raw, staticmethod):
            return function
        if isinstance(raw, classmethod):
            owner = bound or class_of(s, self.self_)
            return BoundMethod(function, owner)
        if bound is not None:
            return function if part is None else s.wrap(raw, None)
        if isinstance(raw, property):
            return function.call(s, [self.self_], {}, site)
        if type(raw) is types.BuiltinFunctionType or not hasattr(type(raw), "__get__"):
            return function
        getter = s.classes.lookup(type(raw), "__get__")
        if getter is not None and type(getter[1]) is types.FunctionType:
            return s.call_special(function, "__get__", [self.self_, class_of(s, self.self_)], {}, site)
        if type(raw) not in BOUND_BY_SUPER:
            raise UnsupportedAttribute(name=name, type="super", why=f"its class is {type(raw).__name__}")
        return BoundMethod(function, self.self_)


def made_path(s: CaptureState, order: tuple[type, ...], first: int, position: int, name: str) -> Source | None:
    """The path to `name` on the class at `position` in the order of a class made in the frame."""
    owner = order[position]
    outer = next((base for base in s.classes.outer_bases(order[0]) if owner in base.__mro__), None)
    base = s.classes.path(outer) if outer is not None else None
    if outer is None or base is None or not owner.__flags__ & HEAP_TYPE:
        return None
    for between in order[first:position]:
        if between in outer.__mro__:
            s.guard(DictAttrSource(MroSource(base, outer.__mro__.index(between)), name), GuardKind.ABSENT)
    return DictAttrSource(MroSource(base, outer.__mro__.index(owner)), name)


@handles(super)
def make_super(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Without arguments: the class of the current function, and its first argument."""
    if args:
        if not isinstance(args[0], Class):
            raise s.error(TypeError, f"super() argument 1 must be a type, not {args[0].type_name()}")
        return checked_super(s, args[0].constant(s), args[1])
    frame = running_frame(s)
    if not frame.code.co_argcount:
        raise s.error(RuntimeError, "super(): no arguments")
    first = frame.code.co_varnames[0]
    cell = frame.cells.get(first)
    self_ = cell.load(s) if cell is not None else read_variable(frame, first)
    if self_ is None:
        raise s.error(RuntimeError, "super(): arg[0] deleted")
    if "__class__" not in frame.cells:
        raise s.error(RuntimeError, "super(): __class__ cell not found")
    cls = frame.cells["__class__"].load(s)
    if cls is None:
        raise s.error(RuntimeError, "super(): empty __class__ cell")
    return checked_super(s, cls.constant(s), self_)


def checked_super(s: CaptureState, cls: type, self_: Value) -> Super:
    made = Super(cls, self_)
    if cls not in made.start().__mro__:
        raise s.error(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    return made


@wraps(type, subclasses=True)
def wrap_class(s: CaptureState, real: type, source: Source | None) -> Value:
    if type(real).__hash__ is not object.__hash__:
        raise UnsupportedCall(function=type.__repr__(real), why="its metaclass says how it is hashed")
    made = s.classes.values.get(real)
    return Class(real, source) if made is None else made
