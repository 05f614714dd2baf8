"""Constants and live objects that sources and guards carry, and their form on disk.

    constant_to_json((1, 2.5, float("nan")))   ->  ["tuple", [1, ["float", "0x1.4000000000000p+1"], ["float", "nan"]]]
    reference("torch.nn.modules.linear:Linear") ->  ObjectRef("torch.nn.modules.linear:Linear", <class Linear>)

JSON merges values that Python distinguishes (1 and 1.0, a tuple and a list) and has no nan, so everything but None,
bool, int and str is written as `[kind, content]`. A class, a function or a code object is written as an import path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import torch

from kiln.runtime.guards.reference import (
    NotSerialisable,
    ObjectRef,
    load_reference,
    reference,
    reference_path,
    resolve,
)

__all__ = [
    "Json", "NotSerialisable", "ObjectRef", "add_constants", "constant_from_json", "constant_to_json", "is_constant",
    "load_reference", "readable_constant", "reference", "resolve", "same_constant",
]  # fmt: skip

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_TORCH_NAMES = (torch.dtype, torch.layout, torch.memory_format)

_WRITERS: dict[type, Callable[[object], Json]] = {
    float: lambda value: ["float", float.hex(value) if value == value else "nan"],  # type: ignore[arg-type]
    complex: lambda value: ["complex", [constant_to_json(value.real), constant_to_json(value.imag)]],  # type: ignore[attr-defined]
    bytes: lambda value: ["bytes", value.hex()],  # type: ignore[attr-defined]
    tuple: lambda value: ["tuple", [constant_to_json(item) for item in value]],  # type: ignore[attr-defined]
    frozenset: lambda value: ["frozenset", sorted((constant_to_json(item) for item in value), key=repr)],  # type: ignore[attr-defined]
    slice: lambda value: ["slice", [constant_to_json(v) for v in (value.start, value.stop, value.step)]],  # type: ignore[attr-defined]
    range: lambda value: ["range", [value.start, value.stop, value.step]],  # type: ignore[attr-defined]
    type(...): lambda value: ["ellipsis", None],
    torch.device: lambda value: ["device", str(value)],
    torch.Size: lambda value: ["size", list(value)],  # type: ignore[call-overload]
    ObjectRef: lambda value: ["object", reference_path(value)],  # type: ignore[arg-type]
} | {kind: lambda value: ["torch", str(value).removeprefix("torch.")] for kind in _TORCH_NAMES}


def _items(content: Json) -> list[object]:
    assert isinstance(content, list)
    return [constant_from_json(item) for item in content]


_READERS: dict[str, Callable[[Json], object]] = {
    "float": lambda content: float.fromhex(str(content)),
    "complex": lambda content: complex(*_items(content)),  # type: ignore[call-overload]
    "bytes": lambda content: bytes.fromhex(str(content)),
    "tuple": lambda content: tuple(_items(content)),
    "frozenset": lambda content: frozenset(_items(content)),
    "slice": lambda content: slice(*_items(content)),
    "range": lambda content: range(*_items(content)),  # type: ignore[call-overload]
    "ellipsis": lambda content: ...,
    "device": lambda content: torch.device(str(content)),
    "size": lambda content: torch.Size(_items(content)),  # type: ignore[arg-type]
    "object": lambda content: load_reference(str(content)),
    "torch": lambda content: getattr(torch, str(content)),
}


def add_constants(kind: type) -> None:
    """Objects of a class from now on are constants: they never change, have an equality written in C, and are made
    again from their attributes, `kind(**attributes)`."""
    _WRITERS[kind] = lambda value: ["made", [constant_to_json(reference(kind)), _attributes(value)]]


def _attributes(value: object) -> Json:
    state = cast(dict[str, object], value.__reduce_ex__(2)[2] or {})
    return {str(name): constant_to_json(item) for name, item in state.items()}


def _made(content: Json) -> object:
    assert isinstance(content, list) and isinstance(content[1], dict)
    kind = constant_from_json(content[0])
    assert isinstance(kind, ObjectRef) and isinstance(kind.value, type)
    return kind.value(**{name: constant_from_json(item) for name, item in content[1].items()})


_READERS["made"] = _made


def is_constant(value: object) -> bool:
    """Whether `value` is deeply immutable, so that a guard on its type and value is enough."""
    if type(value) in (tuple, frozenset):
        return all(is_constant(item) for item in value)  # type: ignore[attr-defined]
    return value is None or type(value) in (bool, int, str) or type(value) in _WRITERS


def constant_to_json(value: object) -> Json:
    """The form on disk; raises `NotSerialisable` for what is no constant."""
    if value is None or type(value) in (bool, int, str):
        return value  # type: ignore[return-value]
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise NotSerialisable(f"a {type(value).__qualname__} cannot be written")
    return writer(value)


def constant_from_json(data: Json) -> object:
    """Inverse of `constant_to_json`."""
    if not isinstance(data, list):
        return data
    kind, content = data
    return _READERS[str(kind)](content)


def readable_constant(data: Json) -> object:
    """The same for explanations: of an object that the program has replaced since, only its path."""
    try:
        return constant_from_json(data)
    except NotSerialisable:
        assert isinstance(data, list)
        return ObjectRef(str(data[1]).partition("@")[0], None)


def same_constant(left: object, right: object) -> bool:
    """Equal in type and value, with nan equal to nan and 0.0 different from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (tuple, frozenset, slice, float, complex)):
        return constant_to_json(left) == constant_to_json(right)
    return bool(left == right)
