"""Collecting the guards of a frame while it is interpreted: each question once, weaker ones dropped.

    self: type_is Net            self: type_is Net
    self: type_is Net      =>    x: equals 3
    x: type_is int
    x: equals 3

Guards keep the order in which the interpreter asked, so a guard stands after those on the path to its
value. Implication: `equals`, `is_none` and `is` tell the type too; `dict_keys` tells the length and the
absence of every other key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from typing import final

from kiln.runtime.guards.guard import Guard, GuardKind
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
IMPLIED = {kind.value: tuple(one.value for one in weaker) for kind, weaker in _IMPLIED.items()}
"""A guard of the key's kind makes guards of these kinds on the same source redundant."""
_SEVERAL = (
    *(GuardKind.HAS_ATTR, GuardKind.NO_ATTR, GuardKind.TENSOR_ALIASES, GuardKind.SHAPE_RELATION),
    GuardKind.SET_ITEMS,
)
DETAILED = frozenset(kind.value for kind in _SEVERAL)
"""Kinds of which one source may have several."""
ABSENT, DICT_KEYS = GuardKind.ABSENT.value, GuardKind.DICT_KEYS.value


def detail_of(kind: type[Source]) -> Callable[[Source], object]:
    """What tells two steps of a kind from one base apart."""
    names = [one.name for one in fields(kind) if one.name != "base"]
    return attrgetter(*names) if names else lambda source: None


DETAILS = {kind: detail_of(kind) for kind in SOURCES.values()}


@final
class GuardCollector:
    """The guards of one capture, in order."""

    def __init__(self) -> None:
        self._guards: dict[tuple[int, str, object], Guard] = {}

    def add(
        self, source: Source, kind: GuardKind, expected: object = None, at: Location | None = None, why: str = ""
    ) -> None:
        """Ask `kind` of `source`, unless it was asked before.

        Sources are told apart by identity here (hashing a path costs more than checking it); equal
        paths that are different objects are merged by `finish`.
        """
        # `_value_`: the property `value` of an enum member costs more than the rest of this.
        name = kind._value_
        key = (id(source), name, expected if name in DETAILED else None)
        if key not in self._guards:
            self._guards[key] = Guard(source, kind, expected, at, why)

    def asked(self, source: Source, kind: str) -> bool:
        """Whether this very path was asked so before; `kind` is the value of one that a source has once."""
        return (id(source), kind, None) in self._guards

    def __len__(self) -> int:
        return len(self._guards)

    def first(self, count: int) -> list[Guard]:
        """The guards that were asked first."""
        return list(islice(self._guards.values(), count))

    def finish(self) -> list[Guard]:
        """The guards that say something which no other says."""
        paths = Paths()
        numbered = [(paths.number(guard.source), guard.kind._value_, guard) for guard in self._guards.values()]
        keyed = {number for number, kind, _ in numbered if kind == DICT_KEYS}
        weaker = {(number, other) for number, kind, _ in numbered for other in IMPLIED.get(kind, ())}
        kept: dict[tuple[int, str, str], Guard] = {}
        for number, kind, guard in numbered:
            if (number, kind) in weaker or (kind == ABSENT and paths.base(number) in keyed):
                continue
            detail = repr(guard.expected) if kind in DETAILED else ""
            kept.setdefault((number, kind, detail), guard)
        return list(kept.values())


@final
class Paths:
    """Equal sources get equal numbers; each step of a path is looked at once, not once per guard below it."""

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
        """The number of the dict that the path takes an item of, else -1."""
        return self._bases[number]


def explain(guards: list[Guard]) -> str:
    """One line per guard, with the user line that asked for it."""
    return "\n".join(
        guard.text() + (f"   # {guard.location.file}:{guard.location.line}" if guard.location else "")
        for guard in guards
    )
