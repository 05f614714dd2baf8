"""`dataclass` for the hundreds of frozen classes that a first compile imports, made faster.

    from kiln.support.records import dataclass

    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 0

`dataclasses` compiles six functions for each frozen class one by one. Here `__init__`, `__eq__` and `__hash__` are
compiled together, and the other methods are shared (times: docs/decisions.md, "Time of compiling"). Fields, behaviour
and errors are those of the standard library, which makes all other classes.
"""

from __future__ import annotations

import dataclasses
import reprlib
import types
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, ClassVar, Protocol

Fields = tuple["dataclasses.Field[object]", ...]


class DataclassObject(Protocol):
    """An object of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


def made_fast(
    cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, **others: bool
) -> object:
    """`dataclasses.dataclass`."""
    if not frozen or others:
        return dataclasses.dataclass(cls, frozen=frozen, slots=slots, eq=eq, **others)  # type: ignore[call-overload]
    return _made(cls, slots, eq) if cls is not None else lambda cls: _made(cls, slots, eq)


def _made(cls: type, slots: bool, eq: bool) -> type:
    text = cls.__doc__
    cls.__doc__ = text or cls.__name__  # else `dataclasses` asks for the signature of `__init__`
    made: type[DataclassObject] = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    made.__doc__ = text
    fields = dataclasses.fields(made)
    methods = {**_compiled(made, fields, slots, eq), **_frozen(made, fields), "__repr__": _shown}
    if slots:
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        unhashable = name == "__hash__" and made.__dict__.get(name) is None  # a class with `__eq__` gets None
        if name not in made.__dict__ or unhashable:
            setattr(made, name, method)
    return made


def _compiled(cls: type, fields: Fields, slots: bool, eq: bool) -> Mapping[str, Callable[..., object]]:
    """`__init__`, and with `eq` `__eq__` and `__hash__`."""
    scope: dict[str, object] = {"MISSING": dataclasses.MISSING, "set": object.__setattr__}
    parameters: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for field in fields:
        name, value = field.name, field.name
        if field.default is not dataclasses.MISSING:
            scope[f"default_{name}"] = field.default
            value = name if field.init else f"default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            scope[f"default_{name}"] = field.default_factory
            value = f"default_{name}() if {name} is MISSING else {name}" if field.init else f"default_{name}()"
        elif not field.init:
            continue
        if field.init:
            default = f"=default_{name}" if field.default is not dataclasses.MISSING else "=MISSING"
            (named if field.kw_only else parameters).append(name + (default if f"default_{name}" in scope else ""))
        if slots:
            scope[f"set_{name}"] = getattr(cls, name).__set__
        body.append(f"set_{name}(self, {value})" if slots else f"set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = [f"def __init__({', '.join(['self', *parameters, *(['*'] if named else []), *named])}):"]
    lines += [f" {line}" for line in body or ["pass"]]
    names = ["__init__"]
    if eq:
        left, right = (_tuple(owner, [field.name for field in fields if field.compare]) for owner in ("self", "other"))
        hashed = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]
        lines += ["def __eq__(self, other):"]
        lines += [f" return {left} == {right} if other.__class__ is self.__class__ else NotImplemented"]
        lines += ["def __hash__(self):", f" return hash({_tuple('self', hashed)})"]
        names += ["__eq__", "__hash__"]
    return _functions(cls, scope, lines, names)


def _functions(
    cls: type, scope: dict[str, object], lines: list[str], names: list[str]
) -> dict[str, types.FunctionType]:
    """The functions `names` that `lines` define; they see the names of `scope`."""
    text = "\n ".join([f"def make({', '.join(scope)}):", *lines, f"return {', '.join(names)},"])
    space: dict[str, Callable[..., tuple[types.FunctionType, ...]]] = {}
    exec(text, {"__name__": cls.__module__}, space)
    made = dict(zip(names, space["make"](**scope), strict=True))
    for function in made.values():
        function.__qualname__ = f"{cls.__qualname__}.{function.__name__}"
    return made


def _tuple(owner: str, names: list[str]) -> str:
    return f"({', '.join(f'{owner}.{name}' for name in names)}{',' if names else ''})"


def _frozen(cls: type, fields: Fields) -> dict[str, Callable[..., object]]:
    """As the standard library's: a subclass that is no dataclass may have attributes of its own."""
    names = frozenset([field.name for field in fields])

    def __setattr__(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


@reprlib.recursive_repr()
def _shown(self: DataclassObject) -> str:
    parts = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{self.__class__.__qualname__}({', '.join(parts)})"


def _state(self: DataclassObject) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: DataclassObject, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = made_fast
