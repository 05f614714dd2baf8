"""`isinstance` and `issubclass`: by the class, its registry, or a check that the program defines.

isinstance(x, int | str)          the classes of the union in order
isinstance(x, typing.Sequence)    `collections.abc.Sequence`, whose registry is asked again by a guard
"""

from __future__ import annotations

import abc
import collections.abc
import sys
import types
import typing
from collections.abc import Collection, Iterator

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.functions import attribute, guard_own_attr
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.class_entries import guard_lacks
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.object import Object, find_attr
from kiln.capture.interpreter.variables.sequence import List, Sequence
from kiln.capture.interpreter.variables.tensor import RegionInputs, Tensor
from kiln.capture.interpreter.variables.weak_references import WeakProxy
from kiln.runtime.guards.constant import reference
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import HEAP_TYPE
from kiln.runtime.guards.source import CALL, CallSource, ItemSource, ModuleGlobalSource


@handles(isinstance)
def isinstance_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if kwargs:
        raise s.error(TypeError, "isinstance() takes no keyword arguments")
    value, classes = args
    kind = s.guard_type(value) if not value.is_torch else value.python_type()
    return Constant(any(instance_of(s, value, kind, cls) for cls in flat_classes(s, classes, "isinstance")))


NO_CLASS = {
    "isinstance": "a type, a tuple of types, or a union",
    "issubclass": "a class, a tuple of classes, or a union",
}


def flat_classes(s: CaptureState, classes: Value, function: str) -> Iterator[type]:
    """The classes in a tuple or union, in order: those behind a match are not looked at."""
    if isinstance(classes, Sequence):
        for item in classes.items(s):
            yield from flat_classes(s, item, function)
    elif isinstance(classes, Object):
        if type(classes.original).__module__ != "typing":
            classes.constant(s)
        s.guard(classes.source, GuardKind.IS, s.reference(classes.original))
        yield from options(s, classes.original, function)
    else:
        found = classes.constant(s)
        if not isinstance(found, type):
            raise s.error(TypeError, f"{function}() arg 2 must be {NO_CLASS[function]}")
        yield found


def options(s: CaptureState, alias: object, function: str) -> Iterator[type]:
    """The classes that an alias stands for, such as `int | str`, `typing.Optional[int]` and `typing.Sequence`."""
    if isinstance(alias, type) and not isinstance(alias, types.GenericAlias):
        yield alias
    elif isinstance(alias, types.UnionType) or getattr(alias, "__origin__", None) is typing.Union:
        for option in getattr(alias, "__args__", ()):
            yield from options(s, option, function)
    elif isinstance(alias, PLAIN_ALIAS):
        yield getattr(alias, "__origin__", object)
    else:
        try:
            (isinstance if function == "isinstance" else issubclass)(object, alias)  # type: ignore[arg-type]
        except TypeError as error:
            raise s.error(TypeError, *error.args) from None
        raise UnsupportedCall(function=function, why=f"{alias!r} asks for more than classes")


PLAIN_ALIAS: type = type(typing.List)  # noqa: UP006 - the type of the alias
"""Of aliases without arguments."""


def instance_of(s: CaptureState, value: Value, kind: type, cls: type) -> bool:
    """`isinstance` by the class alone, unless a metaclass inspects the object."""
    if kind is cls:
        return True
    own = own_check(s, cls, "__instancecheck__")
    if own is not None:
        return own.call(s, [s.wrap(cls, s.classes.path(cls)), value], {}).truth(s)
    if members := protocol_members(s, cls):
        return is_named_by(s, kind, cls, members) or all(has_member(s, value, cls, name) for name in members)
    if registers(cls):
        return registered(s, cls, kind)
    if cls is torch.nn.Buffer and isinstance(value, Tensor):
        return s.wrap(getattr, None).call(s, [value, Constant("_is_buffer"), Constant(False)], {}).truth(s)
    check: object = type(cls).__instancecheck__
    if check is type.__instancecheck__ or value.real() is MISSING:
        if isinstance(value, Tensor) and cls is torch.nn.Parameter:
            s.part(RegionInputs).asked_kind.append(value)
            return kind is torch.nn.Parameter or issubclass(kind, cls)
        return issubclass(kind, cls) or (
            isinstance(value, Object | WeakProxy) and issubclass(claimed_class(s, value), cls)
        )
    return isinstance(value.real(), cls)


def protocol_members(s: CaptureState, cls: type) -> Collection[str]:
    """The names that an instance of a protocol has to have, in `typing`'s order; none where `cls` is another class."""
    if not cls.__dict__.get("_is_protocol"):
        return ()
    if not getattr(cls, "_is_runtime_protocol", False):
        raise s.error(TypeError, "Instance and class checks can only be used with @runtime_checkable protocols")
    asked = getattr(typing, "_get_protocol_attrs")  # noqa: B009
    members: Collection[str] = getattr(cls, "__protocol_attrs__", None) or asked(cls)
    return members


def is_named_by(s: CaptureState, kind: type, cls: type, members: Collection[str]) -> bool:
    """Whether the class of an instance says that it has the members of `cls`: those of methods only are looked for."""
    if all([callable(getattr(cls, name, None)) for name in members]):
        return registered(s, cls, kind)
    return cls in kind.__mro__


def has_member(s: CaptureState, value: Value, cls: type, name: str) -> bool:
    """Whether an instance has a member of the protocol `cls`: a method that is None blocks it."""
    if STATIC_MEMBERS and s.classes.lookup(value.python_type(), "__getattr__") is not None:
        found = find_attr(s, value, name)
        if found is None:
            s.guard_type(value)
            guard_lacks(s, value, name)
    else:
        found = attribute(s, value, name)
    if found is None:
        return False
    guard_own_attr(s, value, name)
    if not callable(getattr(cls, name, None)):
        return True
    return not s.is_none(found if STATIC_MEMBERS else value.get_attr(s, name))


STATIC_MEMBERS = sys.version_info >= (3, 12)
"""Whether `isinstance` does not ask `__getattr__` for members of protocols; before, it asks for methods twice."""


def claimed_class(s: CaptureState, value: Value) -> type:
    """`value.__class__`, which proxies and mocks define: `isinstance` asks it too."""
    if isinstance(value, WeakProxy):
        return value.held(s).python_type()
    kind = value.python_type()
    read, found = s.classes.lookup(kind, "__getattribute__"), s.classes.lookup(kind, "__class__")
    own = type(read[1]) is types.FunctionType if read is not None else False
    if issubclass(kind, torch.nn.Module) or not (own or (found is not None and found[0] is not object)):
        return kind
    claimed = value.get_attr(s, "__class__")
    return claimed.constant(s) if isinstance(claimed, Class) else kind


@handles(issubclass)
def issubclass_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Object):
        raise UnsupportedCall(function="issubclass", why="an object that is no class may say what its bases are")
    if not isinstance(args[0], Class):
        raise s.error(TypeError, "issubclass() arg 1 must be a class")
    kind = args[0].constant(s)
    return Constant(any(subclass_of(s, args[0], kind, cls) for cls in flat_classes(s, args[1], "issubclass")))


def subclass_of(s: CaptureState, value: Value, kind: type, cls: type) -> bool:
    own = own_check(s, cls, "__subclasscheck__")
    if own is not None:
        return own.call(s, [s.wrap(cls, s.classes.path(cls)), value], {}).truth(s)
    return registered(s, cls, kind) if registers(cls) else issubclass(kind, cls)


def own_check(s: CaptureState, cls: type, name: str) -> Value | None:
    """The program's own `__instancecheck__` or `__subclasscheck__` on the metaclass of `cls`."""
    meta = type(cls)
    if meta is type or not isinstance(cls, type):
        return None
    found = s.classes.lookup(meta, name)
    if found is None or type(found[1]) is not types.FunctionType or found[1].__globals__.get("__name__") in LIBRARIES:
        return None
    return s.class_attr(s.wrap(cls, s.classes.path(cls)), name, found[1])


LIBRARIES = frozenset(
    ("abc", "typing", "typing_extensions", "torch.nn.parameter", "torch._tensor", "torch._opaque_base")
)
"""Their checks are called."""
ASK_REGISTRY = ModuleGlobalSource("_abc", "_abc_subclasscheck")


def registers(cls: type) -> bool:
    """Whether classes can be registered as subclasses of `cls`."""
    return isinstance(cls, abc.ABCMeta) and type(cls).__subclasscheck__ is abc.ABCMeta.__subclasscheck__


def registered(s: CaptureState, cls: type, kind: type) -> bool:
    """`issubclass(kind, cls)`; where registration may change the answer, the registry of `cls` is asked again."""
    answer = issubclass(kind, cls)
    final = answer and cls.__module__ == collections.abc.__name__ and not kind.__flags__ & HEAP_TYPE
    if cls not in kind.__mro__ and not final:  # no registry forgets: a built-in class that is `Iterable` remains it
        s.guard(CallSource(ASK_REGISTRY, (s.reference(cls), s.reference(kind))), GuardKind.EQUALS, answer)
    return answer


SUBCLASSES = reference(type.__subclasses__)


@handles(type.__subclasses__)
def subclasses(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The list of those that are alive, which the guards ask for again: plugins register themselves so."""
    cls = args[0].constant(s)
    source, found = CallSource(CALL, (SUBCLASSES, s.reference(cls))), type.__subclasses__(cls)
    if any([kind in s.classes.made for kind in found]):
        raise UnsupportedCall(function="type.__subclasses__", why="the frame makes one of them")
    s.guard(source, GuardKind.LENGTH, len(found))
    for position, kind in enumerate(found):
        s.guard(ItemSource(source, position), GuardKind.IS, s.reference(kind))
    return List([s.wrap(kind, s.classes.path(kind)) for kind in found])
