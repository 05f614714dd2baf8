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

from typing import final

from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.runtime.guards.source import ItemSource, Source
from kiln.support.location import Location

IMPLIED: dict[GuardKind, tuple[GuardKind, ...]] = {
    GuardKind.EQUALS: (GuardKind.TYPE_IS, GuardKind.LENGTH),
    GuardKind.IS_NONE: (GuardKind.TYPE_IS, GuardKind.EQUALS),
    GuardKind.IS: (GuardKind.TYPE_IS, GuardKind.EQUALS, GuardKind.FUNCTION_CODE),
    GuardKind.FUNCTION_CODE: (GuardKind.TYPE_IS,),
    GuardKind.TENSOR: (GuardKind.TYPE_IS,),
    GuardKind.DICT_KEYS: (GuardKind.LENGTH,),
}
"""A guard of the key's kind makes guards of these kinds on the same source redundant."""


@final
class GuardCollector:
    """The guards of one capture, in order."""

    def __init__(self) -> None:
        self._guards: dict[tuple[int, GuardKind, object], Guard] = {}
        self._sources: list[Source] = []

    def add(
        self, source: Source, kind: GuardKind, expected: object = None, at: Location | None = None, why: str = ""
    ) -> None:
        """Ask `kind` of `source`, unless it was asked before.

        Sources are told apart by identity here (hashing a path costs more than checking it); equal
        paths that are different objects are merged by `finish`.
        """
        detail = expected if kind in (GuardKind.HAS_ATTR, GuardKind.NO_ATTR) else None
        key = (id(source), kind, detail)
        if key not in self._guards:
            self._guards[key] = Guard(source, kind, expected, at, why)

    def __len__(self) -> int:
        return len(self._guards)

    def finish(self) -> list[Guard]:
        """The guards that say something which no other says."""
        texts = {id(guard.source): guard.source for guard in self._guards.values()}
        names = {number: source.text() for number, source in texts.items()}
        asked = {(names[id(guard.source)], guard.kind) for guard in self._guards.values()}
        weaker = {(name, other) for name, kind in asked for other in IMPLIED.get(kind, ())}
        kept: dict[tuple[str, GuardKind, str], Guard] = {}
        for guard in self._guards.values():
            name = names[id(guard.source)]
            if (name, guard.kind) in weaker or self._absent_is_told(guard, asked, names):
                continue
            kept.setdefault((name, guard.kind, repr(guard.expected)), guard)
        return list(kept.values())

    @staticmethod
    def _absent_is_told(guard: Guard, asked: set[tuple[str, GuardKind]], names: dict[int, str]) -> bool:
        if guard.kind is not GuardKind.ABSENT or not isinstance(guard.source, ItemSource):
            return False
        base = names.get(id(guard.source.base))
        return base is not None and (base, GuardKind.DICT_KEYS) in asked


def explain(guards: list[Guard]) -> str:
    """One line per guard, with the user line that asked for it."""
    return "\n".join(
        guard.text() + (f"   # {guard.location.file}:{guard.location.line}" if guard.location else "")
        for guard in guards
    )
