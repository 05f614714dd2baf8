"""The side effects of one capture, in the order of the first change of each thing.

    self.count += 1; cache.append(y); self.count += 1     ->     attribute `count` of self, contents of cache

Each changed thing, identified by `key`, has one effect, which writes its last state.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar, final


class Keyed(Protocol):
    """What the log asks of an effect."""

    @property
    def key(self) -> Hashable: ...
    @property
    def writes(self) -> bool:
        """It changes what existed before the frame, so that real objects differ from what the program sees."""

    @property
    def lasting(self) -> bool:
        """It outlives the call of a layer; a context variable does not."""


class Consumed(Protocol):
    """Counts what a break behind it cannot undo: `core.Counters`."""

    def change(self) -> None: ...


E = TypeVar("E", bound=Keyed)


@final
class EffectLog(Generic[E]):
    """Noted effects by key."""

    def __init__(self, counters: Consumed) -> None:
        self._effects: dict[Hashable, E] = {}
        self._counters = counters
        self.changes = 0
        """How often something from outside was changed; modes do not count."""

    def note(self, effect: E) -> None:
        """Add it unless the thing has an effect already."""
        self.changes += 1
        self._counters.change()
        self._effects.setdefault(effect.key, effect)

    def mention(self, effect: E) -> None:
        """Add one that changes nothing which a program could read, such as a warning."""
        self._effects.setdefault(effect.key, effect)

    def replace(self, effect: E) -> None:
        """Replace the effect with this key, keeping its position."""
        self._effects[effect.key] = effect

    def move_to_end(self, effect: E) -> None:
        self.changes += 1
        self._counters.change()
        self._effects.pop(effect.key, None)
        self._effects[effect.key] = effect

    def drop(self, key: Hashable) -> None:
        self.changes += 1
        self._counters.change()
        self._effects.pop(key, None)

    def find(self, key: Hashable) -> E | None:
        return self._effects.get(key)

    def __iter__(self) -> Iterator[E]:
        return iter(self._effects.values())

    def snapshot(self) -> dict[Hashable, E]:
        return dict(self._effects)

    def restore(self, effects: dict[Hashable, E]) -> None:
        """Replace all by those of a snapshot."""
        self._effects = dict(effects)

    def lasting(self) -> dict[Hashable, E]:
        return {key: effect for key, effect in self._effects.items() if effect.lasting}

    @property
    def wrote_outside(self) -> bool:
        return any(effect.writes for effect in self._effects.values())
