"""Collects the guards of a frame while it is interpreted, without duplicates and implied guards.

    self: type_is Net            self: type_is Net
    self: type_is Net      =>    x: equals 3
    x: type_is int
    x: equals 3

Guards keep the order in which they were added, so a guard follows those on the path to its value.
Implication: `equals`, `is_none` and `is` imply the type; `dict_keys` implies the length and the absence
of every other key. `is` does not imply the type of an object whose `__class__` can be set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from typing import final

from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.runtime.guards.reference import HEAP_TYPE, ObjectRef
from kiln.runtime.guards.source import SOURCES, ItemSource, Source
from kiln.support.location import Location

_IMPLIED: dict[GuardKind, tuple[GuardKind, ...]] = {
    GuardKind.EQUALS: (GuardKind.TYPE_IS, GuardKind.LENGTH),
    GuardKind.IS_NONE: (GuardKind.TYPE_IS, GuardKind.EQUALS),
    GuardKind.IS: (GuardKind.TYPE_IS, GuardKind.EQUALS, GuardKind.FUNCTION_CODE),
    GuardKind.FUNCTION_CODE: (GuardKind.TYPE_IS,),
    GuardKind.TENSOR: (GuardKind.TYPE_IS,),
    GuardKind.DICT_KEYS: (GuardKind.LENGTH,),
    GuardKind.SET_ITEMS: (GuardKind.LENGTH,),
}
IMPLIED = {kind.value: tuple(implied.value for implied in weaker) for kind, weaker in _IMPLIED.items()}
"""A guard of the key's kind makes guards of these kinds on the same source redundant."""
_SEVERAL = (
    *(GuardKind.HAS_ATTR, GuardKind.NO_ATTR, GuardKind.TENSOR_ALIASES, GuardKind.SHAPE_RELATION),
    GuardKind.SET_ITEMS,
)
DETAILED = frozenset(kind.value for kind in _SEVERAL)
"""Kinds that may occur several times on one source."""
IDENTIFYING = tuple(
    kind.value
    for kind in (GuardKind.IS, GuardKind.FUNCTION_CODE, GuardKind.EQUALS, GuardKind.TYPE_IS, GuardKind.TENSOR)
)
ABSENT, DICT_KEYS = GuardKind.ABSENT.value, GuardKind.DICT_KEYS.value
TYPE_IS, IS = GuardKind.TYPE_IS.value, GuardKind.IS


def detail_of(kind: type[Source]) -> Callable[[Source], object]:
    """What distinguishes two sources of a kind with the same base."""
    names = [field.name for field in fields(kind) if field.name != "base"]
    return attrgetter(*names) if names else lambda source: None


DETAILS = {kind: detail_of(kind) for kind in SOURCES.values()}


def has_class_that_can_change(guard: Guard) -> bool:
    """Whether the program may set `__class__` of the object that `guard` identifies."""
    value = guard.expected.value if isinstance(guard.expected, ObjectRef) else None
    return guard.kind is IS and bool(type(value).__flags__ & HEAP_TYPE) and not isinstance(value, type)


@final
class GuardCollector:
    """The guards of one capture, in order."""

    def __init__(self) -> None:
        self._guards: dict[tuple[int, str, object], Guard] = {}

    def add(
        self, source: Source, kind: GuardKind, expected: object = None, at: Location | None = None, why: str = ""
    ) -> None:
        """Add a guard unless it is there already.

        Sources are compared by identity here (hashing a path costs more than checking it); `finish` merges
        equal paths that are different objects.
        """
        # `_value_`: the property `value` of an enum member costs more than the rest of this.
        name = kind._value_
        key = (id(source), name, expected if name in DETAILED else None)
        if key not in self._guards:
            self._guards[key] = Guard(source, kind, expected, at, why)

    def has(self, source: Source, kind: str) -> bool:
        """Whether this source object has a guard of `kind`, the value of a kind that occurs once per source."""
        return (id(source), kind, None) in self._guards

    def has_identifying(self, source: Source) -> bool:
        """Whether a guard identifies the value at this source object."""
        return any((id(source), kind, None) in self._guards for kind in IDENTIFYING)

    def __len__(self) -> int:
        return len(self._guards)

    def first(self, count: int) -> list[Guard]:
        """The guards that were added first."""
        return list(islice(self._guards.values(), count))

    def finish(self) -> list[Guard]:
        """All guards that no other guard implies."""
        numbers = SourceNumbers()
        numbered = [(numbers.number(guard.source), guard.kind._value_, guard) for guard in self._guards.values()]
        keyed = {number for number, kind, _ in numbered if kind == DICT_KEYS}
        weaker = {
            (number, other)
            for number, kind, guard in numbered
            for other in IMPLIED.get(kind, ())
            if other != TYPE_IS or not has_class_that_can_change(guard)
        }
        kept: dict[tuple[int, str, str], Guard] = {}
        for number, kind, guard in numbered:
            if (number, kind) in weaker or (kind == ABSENT and numbers.base(number) in keyed):
                continue
            detail = repr(guard.expected) if kind in DETAILED else ""
            kept.setdefault((number, kind, detail), guard)
        return list(kept.values())


@final
class SourceNumbers:
    """Equal sources get equal numbers; each step of a path is compared once, not once per guard below it."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._steps: dict[tuple[object, ...], int] = {}
        self._bases: list[int] = []

    def number(self, source: Source) -> int:
        found = self._known.get(id(source))
        if found is None:
            found = self._known[id(source)] = self._step(source)
        return found

    def _step(self, source: Source) -> int:
        kind = type(source)
        parent: Source | None = getattr(source, "base", None)
        base = self.number(parent) if parent is not None else -1
        key = (kind, base, DETAILS[kind](source))
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = len(self._bases)
            self._bases.append(base if kind is ItemSource else -1)
        return found

    def base(self, number: int) -> int:
        """The number of the dict whose item the source is, else -1."""
        return self._bases[number]


def explain(guards: list[Guard]) -> str:
    """One line per guard, with the user line that caused it."""
    return "\n".join(
        guard.text() + (f"   # {guard.location.file}:{guard.location.line}" if guard.location else "")
        for guard in guards
    )
