"""Constants and live objects that sources and guards carry, and their form on disk.

    constant_to_json((1, 2.5, float("nan")))   ->  ["tuple", [1, ["float", "0x1.4000000000000p+1"], ["float", "nan"]]]
    reference("torch.nn.modules.linear:Linear") ->  ObjectRef("torch.nn.modules.linear:Linear", <class Linear>)

JSON merges what Python keeps apart (1 and 1.0, a tuple and a list, nan), so everything but None,
bool, int and str is written as `[kind, content]`. An object without a value to write (a class, a
function, a code object) is written as the path under which an import finds it again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, final

import torch

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


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


def resolve(path: str) -> object:
    """The object at `module:qualname`; raises `NotSerialisable` where there is none."""
    module, _, qualname = path.partition(":")
    try:
        value: object = importlib.import_module(module)
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
    """The other way: the reference that was written as `path`."""
    return ObjectRef(path, resolve(path))


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
    ObjectRef: lambda value: ["object", value.path],  # type: ignore[attr-defined]
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


def is_constant(value: object) -> bool:
    """Whether `value` is immutable all through, so that equality of type and value is all there is to guard."""
    if type(value) in (tuple, frozenset):
        return all(is_constant(item) for item in value)  # type: ignore[attr-defined]
    return value is None or type(value) in (bool, int, str) or type(value) in _WRITERS


def constant_to_json(value: object) -> Json:
    """The form on disk; raises `NotSerialisable` for what is no constant."""
    if value is None or type(value) in (bool, int, str):
        return value  # type: ignore[return-value]
    writer = _WRITERS.get(type(value))
    if writer is None or (isinstance(value, ObjectRef) and not value.path):
        raise NotSerialisable(f"a {type(value).__qualname__} cannot be written")
    return writer(value)


def constant_from_json(data: Json) -> object:
    """Inverse of `constant_to_json`."""
    if not isinstance(data, list):
        return data
    kind, content = data
    return _READERS[str(kind)](content)


def same_constant(left: object, right: object) -> bool:
    """Equal in type and value, with nan equal to nan and 0.0 different from -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (tuple, frozenset, slice, float, complex)):
        return constant_to_json(left) == constant_to_json(right)
    return bool(left == right)
