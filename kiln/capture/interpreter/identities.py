"""The identities of objects from outside: the paths to each, and the comparisons that the program made.

f(a, a)          one value for both arguments; a guard says that the two paths lead to one object
a is b  (False)  two values; a guard says that they stay two
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Generic, Protocol, TypeVar, final

from kiln.runtime.guards.source import Source
from kiln.support.records import dataclass


class Sourced(Protocol):
    @property
    def source(self) -> Source | None: ...


V = TypeVar("V", bound=Sourced)


@final
@dataclass
class PlainReads:
    """Paths to containers whose classes read items by code of the program, which transformed code must not run."""

    bases: dict[int, tuple[Source, type]] = field(default_factory=dict)
    """By the `id` of a path: the path, and the built-in class whose methods read the items."""


@final
class Identities(Generic[V]):
    """Mutable objects have one value each. Keys are `id`s: the values keep the objects alive."""

    def __init__(self) -> None:
        self.objects: dict[int, V] = {}
        """In the order in which they were reached."""
        self.owners: dict[int, V] = {}
        """Instance dict -> the object whose attributes it holds."""
        self.other_paths: list[tuple[V, Source]] = []
        """Objects that were reached on another path than their own, with that path."""
        self.distinct: list[tuple[V, V]] = []
        """Values that were compared and are not the same object."""
        self.keys: dict[int, V] = {}
        """Tensors and objects that were looked up in dicts and sets, where they count by identity."""
        self.cell_paths: dict[int, list[Source]] = {}
        """The paths to each cell (not to its contents)."""

    def same_object(self, real: object, source: Source | None, make: Callable[[], V]) -> V:
        """The value of `real`; other paths to it are guarded to lead to the same object."""
        known = self.objects.get(id(real))
        if known is None:
            known = self.objects[id(real)] = make()
        elif source is not None and known.source is not None and source != known.source:
            self.other_paths.append((known, source))
        return known

    def aliases(self) -> list[tuple[V, list[Source]]]:
        """Objects that were reached on several paths, with the other paths."""
        found: dict[int, tuple[V, list[Source]]] = {}
        for value, source in self.other_paths:
            found.setdefault(id(value), (value, []))[1].append(source)
        return list(found.values())
