"""Attribute lookups on classes, each done once per capture.

self.scale * 2     lookup(Net, "scale") -> None         lookup(Net, "forward") -> (Net, <function>)
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, final

import torch

from kiln.runtime.guards.source import ModuleGlobalSource, Source, TypeSource

V = TypeVar("V")
W = TypeVar("W")
K = TypeVar("K", bound=tuple[type, *tuple[object, ...]])
Found = tuple[type, Any]
"""The class that defines a name, and its entry in the class's dict."""


def full_name(cls: type) -> str:
    """As errors of CPython 3.14 name a class."""
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


TENSOR_CLASSES: dict[type, Source] = {
    torch.Tensor: ModuleGlobalSource("torch", "Tensor"),
    torch.nn.Parameter: ModuleGlobalSource("torch.nn.parameter", "Parameter"),
}
"""Paths to the classes of tensors that are made in a frame."""


SET_HERE = object()
"""Stands for the entry of a class that the frame has set: plain data."""


@final
class ClassLookups(Generic[V]):
    """Lookups along method resolution orders, and the values made of their results."""

    def __init__(self) -> None:
        self._found: dict[tuple[type, str], Found | None] = {}
        self.sources: dict[type, Source] = dict(TENSOR_CLASSES)
        """Paths to classes that the program named: instances made in the frame have no other."""
        self.instances: dict[type, Source] = {}
        """Paths to values of these classes, whose types are guarded."""
        self.guarded: set[tuple[type, str]] = set()
        """Special methods whose absence or identity is guarded."""
        self.lacking: set[tuple[type, str]] = set()
        """Names that are guarded to be absent from a class."""
        self.attributes: dict[tuple[type, str], V] = {}
        """Read through an instance."""
        self.own_attributes: dict[tuple[type, str], V] = {}
        """Read through the class."""
        self.unbound: dict[tuple[type, str], V] = {}
        """The functions of static and class methods."""
        self.accessors: dict[tuple[type, str, str], V] = {}
        """The functions of properties."""
        self.through_super: dict[tuple[type, int, str], V] = {}
        """Keyed by the class of the object and the position in its method resolution order."""
        self.made: dict[type, dict[str, V]] = {}
        """Classes made in the frame, by the stand-in for each: its attributes."""
        self.changed: dict[type, dict[str, V]] = {}
        """Classes from outside: the attributes that the frame has set (`class_changes.py`)."""
        self.values: dict[type, V] = {}
        """The value of each stand-in."""
        self.stand_ins: dict[int, object] = {}
        """Functions of stand-ins, by `id`."""
        self.unreached: set[type] = set()
        """Classes that no guard covers, for want of a path."""

    def path(self, cls: type) -> Source | None:
        """The path to a class: as the program named it, or through an instance of it (`type(x).count`)."""
        instance = self.instances.get(cls)
        return self.sources.get(cls) or (TypeSource(instance) if instance is not None else None)

    def lookup(self, cls: type, name: str) -> Found | None:
        """`name` on the method resolution order of `cls`."""
        key = (cls, name)
        try:
            found = self._found[key]
        except KeyError:
            found = None
            for base in cls.__mro__:
                if name in base.__dict__:
                    found = (base, base.__dict__[name])
                    break
            self._found[key] = found
        return self._with_changes(cls, name, found) if self.changed else found

    def _with_changes(self, cls: type, name: str, found: Found | None) -> Found | None:
        """The entry that the frame has set, if that is found first."""
        for base in cls.__mro__:
            if name in self.changed.get(base, ()):
                return base, SET_HERE
            if found is not None and base is found[0]:
                break
        return found

    def change(self, cls: type, name: str, value: V) -> None:
        """An attribute of a class from outside was set."""
        self.changed.setdefault(cls, {})[name] = value
        for table in (self.attributes, self.own_attributes):
            for key in [key for key in table if key[1] == name and cls in key[0].__mro__]:
                del table[key]

    def gets_like_property(self, cls: type[property]) -> bool:
        """Whether a subclass of `property` leaves `__get__` as it is."""
        found = self.lookup(cls, "__get__")
        return found is not None and found[1] is vars(property)["__get__"]

    def made_attr(self, cls: type, name: str) -> V | None:
        """The attribute, if a class made in the frame defines it, or the frame has set it."""
        found = self.lookup(cls, name) if self.made or self.changed else None
        if found is None:
            return None
        if found[1] is SET_HERE:
            return self.changed[found[0]][name]
        return self.made[found[0]].get(name) if found[0] in self.made else None

    def outer_bases(self, cls: type) -> list[type]:
        """The classes from outside from which a class made in the frame derives."""
        inner = [base for base in cls.__mro__ if base in self.made]
        return [base for base in cls.__mro__ if base not in self.made and any(base in made.__bases__ for made in inner)]

    def outer_base(self, cls: type, name: str) -> type | None:
        """Through which of these a class made in the frame has the attribute."""
        found = self.lookup(cls, name)
        return next((base for base in self.outer_bases(cls) if self.lookup(base, name) == found), None)

    def written(self, cls: type) -> V | type:
        """What code refers to a class by: its value, if it was made in the frame."""
        return self.values.get(cls, cls)

    def forget(self, cls: type) -> None:
        """The attributes of a class made in the frame have changed."""
        drop(self._found, cls)
        drop(self.attributes, cls)
        drop(self.own_attributes, cls)
        drop(self.unbound, cls)
        drop(self.accessors, cls)
        drop(self.through_super, cls)

    def found(self) -> dict[tuple[type, str], Found | None]:
        """All lookups and their results."""
        return dict(self._found)

    def modules(self) -> set[str]:
        """The modules of the classes in `unreached`."""
        return {base.__module__ for cls in self.unreached for base in cls.__mro__}


def drop(table: dict[K, W], cls: type) -> None:
    """Remove the entries of `cls` and of the classes that derive from it."""
    for key in [key for key in table if cls in key[0].__mro__]:
        del table[key]
