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

from itertools import islice
from typing import TypeAlias, final

from kiln.native._frames import GuardPaths
from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.runtime.guards.paths import STEPS
from kiln.runtime.guards.source import Source
from kiln.support.location import Location

KindForm: TypeAlias = tuple[int, int, bool, bool, bool, bool]
"""(bit of the kind, bits of the kinds that it implies, whether it may occur several times on one source, is implied by
the keys of the dict, is those keys, and identifies an object): see csrc/frames/guard_paths.h."""
_IMPLIED: dict[GuardKind, tuple[GuardKind, ...]] = {
    GuardKind.EQUALS: (GuardKind.TYPE_IS, GuardKind.LENGTH),
    GuardKind.IS_NONE: (GuardKind.TYPE_IS, GuardKind.EQUALS),
    GuardKind.IS: (GuardKind.TYPE_IS, GuardKind.EQUALS, GuardKind.FUNCTION_CODE),
    GuardKind.FUNCTION_CODE: (GuardKind.TYPE_IS,),
    GuardKind.TENSOR: (GuardKind.TYPE_IS,),
    GuardKind.DICT_KEYS: (GuardKind.LENGTH,),
    GuardKind.SET_ITEMS: (GuardKind.LENGTH,),
}
"""A guard of the key's kind makes guards of these kinds on the same source redundant."""
_SEVERAL = (
    *(GuardKind.HAS_ATTR, GuardKind.NO_ATTR, GuardKind.TENSOR_ALIASES, GuardKind.SHAPE_RELATION),
    *(GuardKind.SET_ITEMS, GuardKind.SET_HOLDS),
)
DETAILED = frozenset(kind.value for kind in _SEVERAL)
"""Kinds that may occur several times on one source."""
IDENTIFYING = tuple(
    kind.value
    for kind in (GuardKind.IS, GuardKind.FUNCTION_CODE, GuardKind.EQUALS, GuardKind.TYPE_IS, GuardKind.TENSOR)
)
_BITS = {kind: 1 << number for number, kind in enumerate(GuardKind)}
"""One of TYPE_IS, as csrc/frames/guard_paths.cpp knows."""
KINDS: dict[GuardKind, KindForm] = {
    kind: (
        bit,
        sum(_BITS[weaker] for weaker in _IMPLIED.get(kind, ())),
        kind in _SEVERAL,
        kind is GuardKind.ABSENT,
        kind is GuardKind.DICT_KEYS,
        kind is GuardKind.IS,
    )
    for kind, bit in _BITS.items()
}


MAKE = tuple.__new__
"""Of a named tuple: its own constructor is written in Python."""


@final
class GuardCollector:
    """The guards of one capture, in order."""

    def __init__(self) -> None:
        self._guards: dict[tuple[int, str, object], Guard] = {}

    def add(self, source: Source, kind: GuardKind, expected: object = None, at: Location | None = None) -> None:
        """Add a guard unless it is there already.

        Sources are compared by identity here (hashing a path costs more than checking it); `finish` merges
        equal paths that are different objects.
        """
        # `_value_`: the property `value` of an enum member costs more than the rest of this.
        name = kind._value_
        key = (id(source), name, expected if name in DETAILED else None)
        if key not in self._guards:
            self._guards[key] = MAKE(Guard, (source, kind, expected, at))

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
        return GuardPaths(STEPS).needed(list(self._guards.values()), KINDS)
