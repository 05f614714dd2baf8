"""Live objects in guards and constants, and the names under which another process finds them again.

    path_of(torch.nn.Linear)      "torch.nn.modules.linear:Linear"       can be imported
    path_of(F.gelu)               "torch._C._nn:gelu"
    reference_path(f.__code__)    "#code:9f2c..."                        cannot: identified by its contents

A path that begins with `#` is a digest of contents: the reader follows the guard's source and compares
(`tree_file.py`). So code that was edited since, or is hidden behind a decorator, is recognised by what it does.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import hashlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, final
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn

from kiln.support.records import dataclass

CONTENT = "#"
CODE, TWIN, FIELD, CLASS, CONTEXT = "#code:", "#twin:", "#field:", "#class:", "#context:"
HEAP_TYPE = 1 << 9
"""The flag of classes whose attributes can be set."""
TUPLE_GETTER = type(collections.namedtuple("_Probe", "field").field)  # type: ignore[attr-defined]
"""The type of the descriptors of a named tuple's fields."""
TWIN_OF = "_kiln_original"
"""Class attribute of these classes: a `TwinOf`."""
TWIN_MARK = "_kiln_session"
"""Class attribute of the classes that `kiln.compile(module)` makes: the session."""


class NotSerialisable(ValueError):
    """A guard, source or constant has no form that another process could read."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ObjectRef:
    """A live object and the path (`module:qualname`) under which it can be imported; `""` if it cannot."""

    path: str
    value: object = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self.value is other.value

    def __hash__(self) -> int:
        return hash(self.path)


@final
@dataclass(frozen=True, slots=True)
class TwinOf:
    """The module that was compiled; `follow(twin)` gives the compiled one the class that `module` has now."""

    module: nn.Module
    follow: Callable[[nn.Module], None]


class Nameless:
    """Types of CPython that no module exports."""

    list_iterator: type = type(iter([]))
    list_reverseiterator: type = type(reversed([]))
    tuple_iterator: type = type(iter(()))
    range_iterator: type = type(iter(range(0)))
    str_ascii_iterator: type = type(iter(""))
    set_iterator: type = type(iter(set()))
    dict_keyiterator: type = type(iter({}))
    dict_valueiterator: type = type(iter({}.values()))
    dict_itemiterator: type = type(iter({}.items()))
    dict_keys: type = type({}.keys())
    dict_values: type = type({}.values())
    dict_items: type = type({}.items())
    callable_iterator: type = type(iter(int, 1))


def resolve(path: str) -> object:
    """The object at `module:qualname`; raises `NotSerialisable` where there is none.

    An import, and a module's `__getattr__`, run code of libraries: it may raise anything.
    """
    module, _, qualname = path.partition(":")
    try:
        value: object = sys.modules.get(module) or importlib.import_module(module)
        for name in qualname.split(".") if qualname else ():
            value = getattr(value, name)
    except Exception as error:
        raise NotSerialisable(f"`{path}` cannot be imported") from error
    return value


def reference(value: object, path: str = "") -> ObjectRef:
    """`value` with `path`, by default that of its `__module__` and `__qualname__`, if an import finds it there."""
    path = path or own_path(value)
    try:
        found = resolve(path) if path and "<" not in path else None
    except NotSerialisable:
        found = None
    return ObjectRef(path if found is value else "", value)


def own_path(value: object) -> str:
    """What `value` says of itself; a `__getattr__` of the program may raise anything."""
    try:
        module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    except Exception:
        return ""
    return f"{module}:{qualname}" if isinstance(module, str) and isinstance(qualname, str) else ""


def load_reference(path: str) -> ObjectRef:
    """The reference that was written as `path`; one identified by its contents is not bound yet."""
    return ObjectRef(path, None if path.startswith(CONTENT) else load_named(path))


def named_path(value: object) -> str:
    """The import path of `value` and what it holds, or `""`: another process may find another object there.

    torch:sin@builtin_function_or_method _VariableFunctionsClass.sin
    program:Mode.FAST@2
    """
    path = path_of(value)
    return path and f"{path}@{content_of(value)}"


def load_named(path: str) -> object:
    """The object that was written by `named_path`; raises `NotSerialisable` where its place holds another one."""
    where, _, content = path.partition("@")
    value = resolve(where)
    if content_of(value) != content:
        raise NotSerialisable(f"`{where}` is not what it was")
    return value


def content_of(value: object) -> str:
    """What tells an object from others under the same name; guards compare the attributes of classes."""
    if isinstance(value, types.FunctionType):
        return code_key(value.__code__)
    if isinstance(value, enum.Enum):
        return repr(_content(member_value(value), WeakKeyDictionary()))
    if isinstance(value, type):
        return class_content(value)
    return f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}"


def member_value(member: enum.Enum) -> object:
    """The value of an enum member; a text where the program has deleted it."""
    return getattr(member, "_value_", "deleted")


def class_content(cls: type) -> str:
    """The metaclass, the bases, and the names that pure functions read: fields and members."""
    if not cls.__flags__ & HEAP_TYPE:
        return type(cls).__qualname__
    bases = ",".join(f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__[1:-1])
    names: list[object] = [*getattr(cls, "_fields", ()), *getattr(cls, "__dataclass_fields__", ())]
    names += [(name, member_value(member)) for name, member in getattr(cls, "_member_map_", {}).items()]
    return f"{type(cls).__qualname__} {bases} {_content(tuple(names), WeakKeyDictionary())}"


def class_digest(cls: type) -> str:
    """What tells a class that cannot be imported, such as one local to a function."""
    return f"{CLASS}{cls.__module__}:{cls.__qualname__} {class_content(cls)}"


def path_of(value: object) -> str:
    """The path under which an import finds `value` itself, or `""`."""
    for module, qualname in _candidates(value):
        found: object = sys.modules.get(module)
        try:
            for name in qualname.split(".") if qualname else ():
                found = getattr(found, name)
        except AttributeError:
            continue
        if found is value or (type(value) in _MADE_ANEW and type(found) is type(value) and found == value):
            return f"{module}:{qualname}"
    return ""


_MADE_ANEW = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
"""Bound methods: every look-up makes a new object."""


def member_name(value: object) -> str:
    """The name of a member of an enum that torch's C++ defines; empty for other objects."""
    return str(getattr(value, "name", "")) if type(type(value)).__name__ == "pybind11_type" else ""


def _candidates(value: object) -> Iterator[tuple[str, str]]:
    """The modules and names that an object gives for itself."""
    if isinstance(value, types.ModuleType):
        yield value.__name__, ""
        if type(value).__module__ == "torch._ops":  # a namespace of operators is no module of `sys.modules`
            yield "torch", value.__name__.removeprefix("torch.")
        return
    if isinstance(value, enum.Enum):
        yield type(value).__module__, f"{type(value).__qualname__}.{value.name}"
        return
    if (group := getattr(value, "group_name", None)) and type(value).__name__ == "ProcessGroup":
        yield "kiln.runtime.process_groups", f"GROUPS.g{group}"
        return
    if member := member_name(value):
        for place in (type(value).__module__, "torch._C"):
            yield place, f"{type(value).__qualname__}.{member}"
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
        if module.partition(".")[0] == "torch":  # stands in for what this build of torch lacks
            yield "torch._C", name
    if isinstance(value, type):
        yield from (("types", name) for name, found in vars(types).items() if found is value)
        yield __name__, f"Nameless.{name}"


def reference_path(ref: ObjectRef) -> str:
    """The path to write for a reference: the contents of code, the import path of anything else."""
    if isinstance(ref.value, types.CodeType):
        return CODE + code_key(ref.value)
    if type(ref.value) is TUPLE_GETTER:
        return f"{FIELD}{field_index(ref.value)}"
    if isinstance(ref.value, contextvars.ContextVar):  # knows no module
        return CONTEXT + ref.value.name
    path = named_path(ref.value)
    if not path and isinstance(ref.value, type) and TWIN_MARK in vars(ref.value):
        original = path_of(ref.value.__mro__[1])
        path = original and TWIN + original
    if not path and isinstance(ref.value, type):
        path = class_digest(ref.value)
    if not path:
        raise NotSerialisable(f"{ref.value!r:.100} cannot be imported")
    return path


def fits(path: str, value: object) -> bool:
    """Whether `value` has the contents that `path` names."""
    if path.startswith(CODE):
        return isinstance(value, types.CodeType) and code_key(value) == path.removeprefix(CODE)
    if path.startswith(TWIN):
        twin = isinstance(value, type) and TWIN_MARK in vars(value)
        return twin and path_of(value.__mro__[1]) == path.removeprefix(TWIN)  # type: ignore[attr-defined]
    if path.startswith(FIELD):
        return type(value) is TUPLE_GETTER and path == f"{FIELD}{field_index(value)}"
    if path.startswith(CONTEXT):
        return isinstance(value, contextvars.ContextVar) and path == CONTEXT + value.name
    if path.startswith(CLASS):
        return isinstance(value, type) and path == class_digest(value)
    return False


def field_index(getter: object) -> int:
    """Which item of a named tuple a descriptor reads."""
    arguments: Any = getter.__reduce__()[1]
    return int(arguments[0])


CodeDigests = WeakKeyDictionary[types.FunctionType, "tuple[ReferenceType[types.CodeType], str]"]
"""Digests of the code of resume functions, each with the code that it is of."""


def code_key(code: types.CodeType, digests: CodeDigests | None = None) -> str:
    """A digest of everything in a code object but file, lines and columns.

    `digests`: what earlier calls have found, and what this one finds. Code names resume functions, which name those
    that follow them: each is read once, or the cost grows with the number of paths.
    """
    digests = WeakKeyDictionary() if digests is None else digests
    return hashlib.blake2b(repr(_content(code, digests)).encode(), digest_size=16).hexdigest()


def _content(value: object, digests: CodeDigests) -> tuple[object, ...]:
    if isinstance(value, types.CodeType):
        counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars, value.co_name)
        body = (value.co_code, value.co_exceptiontable)
        return ("code", counts, names, body, [_content(constant, digests) for constant in value.co_consts])
    if isinstance(value, frozenset):
        return ("frozenset", sorted(repr(_content(item, digests)) for item in value))
    if isinstance(value, tuple):
        return ("tuple", [_content(item, digests) for item in value])
    if isinstance(value, (type(None), bool, int, float, complex, str, bytes, type(...), slice)):
        return (type(value).__name__, repr(value))
    inner = getattr(value, "function", None)  # a dispatcher of a resume function
    if isinstance(inner, types.FunctionType):
        code, digest = digests.get(inner, (None, ""))
        if code is None or code() is not inner.__code__:
            digest = code_key(inner.__code__, digests)
            digests[inner] = ref(inner.__code__), digest
        return ("function", inner.__globals__.get("__name__"), digest)
    return ("object", path_of(value) or type(value).__qualname__)
