"""Live objects in guards and constants, and the names under which another process finds them again.

    path_of(torch.nn.Linear)      "torch.nn.modules.linear:Linear"       an import finds it
    path_of(F.gelu)               "torch._C._nn:gelu"
    reference_path(f.__code__)    "#code:9f2c..."                        no import does: told by its contents

A path that begins with `#` names contents, not a place: whoever reads it looks where the guard's source leads and
compares (`bind.py`). So code that was edited since, or that stands behind a decorator, is told apart by what it does.
"""

from __future__ import annotations

import enum
import hashlib
import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

CONTENT = "#"
CODE, TWIN = "#code:", "#twin:"
TWIN_MARK = "_kiln_session"
"""Class attribute of the classes that `kiln.compile(module)` makes: the session."""


class NotSerialisable(ValueError):
    """A guard, source or constant has no form that another process could read."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ObjectRef:
    """A live object and the path (`module:qualname`) that finds it again; `""` where no import does."""

    path: str
    value: object = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self.value is other.value

    def __hash__(self) -> int:
        return hash(self.path)


class Nameless:
    """Types of CPython that stand in no module."""

    list_iterator: type[Any] = type(iter([]))
    list_reverseiterator: type[Any] = type(reversed([]))
    tuple_iterator: type[Any] = type(iter(()))
    range_iterator: type[Any] = type(iter(range(0)))
    str_ascii_iterator: type[Any] = type(iter(""))
    set_iterator: type[Any] = type(iter(set()))
    dict_keyiterator: type[Any] = type(iter({}))
    dict_valueiterator: type[Any] = type(iter({}.values()))
    dict_itemiterator: type[Any] = type(iter({}.items()))
    dict_keys: type[Any] = type({}.keys())
    dict_values: type[Any] = type({}.values())
    dict_items: type[Any] = type({}.items())
    callable_iterator: type[Any] = type(iter(int, 1))


def resolve(path: str) -> object:
    """The object at `module:qualname`; raises `NotSerialisable` where there is none."""
    module, _, qualname = path.partition(":")
    try:
        value: object = sys.modules.get(module) or importlib.import_module(module)
        for name in qualname.split(".") if qualname else ():
            value = getattr(value, name)
    except (ImportError, AttributeError) as error:
        raise NotSerialisable(f"`{path}` cannot be imported") from error
    return value


def reference(value: object, path: str = "") -> ObjectRef:
    """`value` with `path`, or with the path made of its own `__module__` and `__qualname__`, if that finds it."""
    if not path:
        module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(module, str) and isinstance(qualname, str):
            path = f"{module}:{qualname}"
    try:
        found = resolve(path) if path and "<" not in path else None
    except NotSerialisable:
        found = None
    return ObjectRef(path if found is value else "", value)


def load_reference(path: str) -> ObjectRef:
    """The other way: the reference that was written as `path`. One told by its contents is not bound yet."""
    return ObjectRef(path, None if path.startswith(CONTENT) else resolve(path))


def path_of(value: Any) -> str:
    """The path that finds the very object `value`, or `""`."""
    for module, qualname in _places(value):
        found: Any = sys.modules.get(module)
        try:
            for name in qualname.split(".") if qualname else ():
                found = getattr(found, name)
        except AttributeError:
            continue
        if found is value or (type(value) in _MADE_ANEW and type(found) is type(value) and found == value):
            return f"{module}:{qualname}"
    return ""


_MADE_ANEW = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
"""Bound methods: each look-up makes another object."""


def _places(value: Any) -> Iterator[tuple[str, str]]:
    """Where an object says, one way or another, that it stands."""
    if isinstance(value, types.ModuleType):
        yield value.__name__, ""
        return
    if isinstance(value, enum.Enum):
        yield type(value).__module__, f"{type(value).__qualname__}.{value.name}"
        return
    if type(value).__module__ == "torch._ops":
        yield "torch", f"ops.{value}"  # "ops.aten.add.Tensor"
    name = getattr(value, "__name__", None)
    module = getattr(value, "__module__", None)
    if not isinstance(name, str):
        return
    for owner in (getattr(value, "__objclass__", None), getattr(value, "__self__", None)):
        if isinstance(owner, type):
            yield owner.__module__, f"{owner.__qualname__}.{name}"
        elif isinstance(owner, types.ModuleType):
            yield owner.__name__, name
    if isinstance(module, str):
        yield module, str(getattr(value, "__qualname__", name))
        yield module, name
    if isinstance(value, type):
        yield from (("types", key) for key, one in vars(types).items() if one is value)
        yield __name__, f"Nameless.{name}"


def reference_path(ref: ObjectRef) -> str:
    """The path to write for a reference: code by its contents, anything else by where an import finds it."""
    if isinstance(ref.value, types.CodeType):
        return CODE + code_key(ref.value)
    path = ref.path or path_of(ref.value)
    if not path and isinstance(ref.value, type) and TWIN_MARK in vars(ref.value):
        original = path_of(ref.value.__mro__[1])
        path = original and TWIN + original
    if not path:
        raise NotSerialisable(f"no import finds {ref.value!r:.100}")
    return path


def fits(path: str, value: object) -> bool:
    """Whether `value` has the contents that `path` names."""
    if path.startswith(CODE):
        return isinstance(value, types.CodeType) and code_key(value) == path.removeprefix(CODE)
    if path.startswith(TWIN):
        twin = isinstance(value, type) and TWIN_MARK in vars(value)
        return twin and path_of(value.__mro__[1]) == path.removeprefix(TWIN)  # type: ignore[attr-defined]
    return False


def code_key(code: types.CodeType) -> str:
    """What a code object does: everything but file, lines and columns."""
    return hashlib.blake2b(repr(_content(code)).encode(), digest_size=16).hexdigest()


def _content(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars, value.co_name)
        body = (value.co_code, value.co_exceptiontable)
        return ("code", counts, names, body, [_content(one) for one in value.co_consts])
    if isinstance(value, frozenset):
        return ("frozenset", sorted(repr(_content(one)) for one in value))
    if isinstance(value, tuple):
        return ("tuple", [_content(one) for one in value])
    if isinstance(value, (type(None), bool, int, float, complex, str, bytes, type(...), slice)):
        return (type(value).__name__, repr(value))
    inner = getattr(value, "function", None)  # a dispatcher: the resume function that code of ours calls
    if isinstance(inner, types.FunctionType):
        return ("function", inner.__globals__.get("__name__"), _content(inner.__code__))
    return ("object", path_of(value) or type(value).__qualname__)
