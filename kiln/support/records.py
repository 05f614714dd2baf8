"""`dataclass` for the hundreds of classes that a first compile imports, made faster.

    from kiln.support.records import dataclass

    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 0

`dataclasses` compiles the text of each method of each class. Here the text of `__init__`, `__eq__` and `__hash__` has
numbers for names, so that classes of one form share what was compiled: a class gets copies of the code with its own
names. The other methods are shared (times: docs/decisions.md, "Time of compiling"). Fields, behaviour and errors are
those of the standard library, which makes classes with other options.
"""

from __future__ import annotations

import dataclasses
import reprlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Protocol

Fields = tuple["dataclasses.Field[object]", ...]


class DataclassObject(Protocol):
    """An object of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


def made_fast(
    cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, **others: bool
) -> object:
    """`dataclasses.dataclass`."""
    if others:
        return dataclasses.dataclass(cls, frozen=frozen, slots=slots, eq=eq, **others)  # type: ignore[call-overload]
    return _made(cls, frozen, slots, eq) if cls is not None else lambda cls: _made(cls, frozen, slots, eq)


def _made(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    text = cls.__doc__
    cls.__doc__ = text or cls.__name__  # else `dataclasses` asks for the signature of `__init__`
    made: type[DataclassObject] = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    made.__doc__ = text
    fields = dataclasses.fields(made)
    methods: dict[str, Callable[..., object] | None] = {
        **_compiled(made, fields, frozen, slots, eq),
        "__repr__": _shown,
    }
    if frozen:
        methods |= _frozen(made, fields)
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    elif eq:
        methods["__hash__"] = None
    for name, method in methods.items():
        unhashable = name == "__hash__" and made.__dict__.get(name) is None  # a class with `__eq__` gets None
        if name not in made.__dict__ or unhashable:
            setattr(made, name, method)
    return made


def _compiled(cls: type, fields: Fields, frozen: bool, slots: bool, eq: bool) -> dict[str, Callable[..., object]]:
    """`__init__`, and with `eq` `__eq__`, and `__hash__` of a frozen class."""
    methods = {"__init__": _init(cls, fields, frozen, slots)}
    if eq:
        left, right = (_tuple(owner, [field.compare for field in fields]) for owner in ("self", "other"))
        same = f"{left} == {right} if other.__class__ is self.__class__ else NotImplemented"
        methods["__eq__"] = _maker(f"def make():\n def __eq__(self, other):\n  return {same}\n return __eq__")()
    if eq and frozen:
        hashed = _tuple("self", [field.compare if field.hash is None else field.hash for field in fields])
        methods["__hash__"] = _maker(f"def make():\n def __hash__(self):\n  return hash({hashed})\n return __hash__")()
    real = {f"f{at}": field.name for at, field in enumerate(fields)}
    return {name: _named(cls, name, method, real) for name, method in methods.items()}


def _init(cls: type, fields: Fields, frozen: bool, slots: bool) -> types.FunctionType:
    """`__init__`; the values of defaults are no part of its text."""
    scope: dict[str, object] = {"MISSING": dataclasses.MISSING, "set": object.__setattr__}
    parameters: list[str] = []
    named: list[str] = []
    defaults: list[object] = []
    named_defaults: dict[str, object] = {}
    body: list[str] = []
    for at, field in enumerate(fields):
        name = value = f"f{at}"
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            scope[f"make_{at}"] = field.default_factory
            value = f"make_{at}() if {name} is MISSING else {name}" if field.init else f"make_{at}()"
        elif not field.init:
            if default is dataclasses.MISSING:
                continue
            scope[f"value_{at}"] = default
            value = f"value_{at}"
        if field.init:
            (named if field.kw_only else parameters).append(name)
            has_default = default is not dataclasses.MISSING or f"make_{at}" in scope
            if field.kw_only and has_default:
                named_defaults[name] = default
            elif has_default:
                defaults.append(default)
            elif defaults and not field.kw_only:
                raise TypeError(f"non-default argument {field.name!r} follows default argument")
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif slots:
            scope[f"set_{at}"] = getattr(cls, field.name).__set__
            body.append(f"set_{at}(self, {value})")
        else:
            body.append(f"set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    given = ", ".join(["self", *parameters, *(["*"] if named else []), *named])
    lines = [f"def make({', '.join(scope)}):", f" def __init__({given}):", *[f"  {line}" for line in body or ["pass"]]]
    made = _maker("\n".join([*lines, " return __init__"]))(**scope)
    made.__defaults__, made.__kwdefaults__ = tuple(defaults) or None, named_defaults or None
    return made


@cache
def _maker(text: str) -> Callable[..., types.FunctionType]:
    """The function `make` that `text` defines."""
    space: dict[str, Callable[..., types.FunctionType]] = {}
    exec(text, {"__name__": __name__}, space)
    return space["make"]


def _named(cls: type, name: str, method: types.FunctionType, real: Mapping[str, str]) -> types.FunctionType:
    """`method` of `cls`, with the `real` names of fields for those that it was compiled with."""

    def renamed(names: Iterable[object]) -> tuple[str, ...]:
        return tuple([real.get(name, name) for name in names])  # type: ignore[call-overload]

    code = method.__code__
    method.__code__ = code.replace(
        co_names=renamed(code.co_names), co_varnames=renamed(code.co_varnames), co_consts=renamed(code.co_consts)
    )
    if method.__kwdefaults__:
        method.__kwdefaults__ = {real[key]: value for key, value in method.__kwdefaults__.items()}
    method.__qualname__, method.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
    return method


def _tuple(owner: str, taken: Sequence[bool]) -> str:
    return f"({''.join(f'{owner}.f{at}, ' for at, is_taken in enumerate(taken) if is_taken)})"


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
