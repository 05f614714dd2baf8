"""Changes of Python objects on one side of a branch: noted, and taken back before the other side is interpreted.

    if gate < 0.1:               cache.__dict__:  keys: None -> k, is_initialized: False -> True
        cache.update(k)          cache has keys None again

What is changed is a place: an attribute of an object, the contents of a list or dict, a cell, an iterator. Its state is
an attribute or content (None where it does not exist), a list of items, a dict of tokens with (key, value), or the
position of the iterator.

The state of a tensor is the one that stands for it, see `copied_tensors.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, cast, final

from kiln.capture.interpreter.builtins.torch_functions import ModeEffect
from kiln.capture.interpreter.core import MISSING, CaptureState, Effect, StateChange, Token, Value
from kiln.capture.interpreter.effects import CallEffect, ContentsEffect, Message, OneSided
from kiln.capture.interpreter.variables.attribute_tables import AttributeTables
from kiln.capture.interpreter.variables.class_entries import is_slot
from kiln.capture.interpreter.variables.deferred_text import Deferred
from kiln.capture.interpreter.variables.function import Cell, CellEffect
from kiln.capture.interpreter.variables.iterators import ITERATORS
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import AttributeEffect, Object
from kiln.capture.interpreter.variables.sequence import AppendEffect, List, OneSidedItem, Spread
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.graph.trace.nested_graphs import NotNested
from kiln.support.records import dataclass

Place = tuple[int, str]
"""The `id` of a value, and the name of an attribute or nothing."""


@final
@dataclass(frozen=True)
class Position:
    """How far an iterator has come."""

    of: tuple[int, ...]


@final
@dataclass(frozen=True)
class Growth:
    """A list with items that were not read, or that it has after one side of a branch alone."""

    items: list[Value] | None
    appended: list[Value]
    tail: list[Value]

    def added_to(self, before: Growth) -> list[Value] | None:
        """What it has behind the items of `before`; None if other items changed."""
        if (self.items is None) is not (before.items is None):
            return None
        parts, front = self.parts(), before.parts()
        behind = parts[len(front) :]
        same = len(parts) >= len(front) and all(a is b for a, b in zip(parts, front, strict=False))
        return behind if same and len(self.tail) >= len(before.tail) else None

    def parts(self) -> list[Value]:
        return [*(self.appended if self.items is None else self.items), *self.tail]

    def followed_by(self, added: Sequence[Value]) -> State:
        if self.tail or any(isinstance(item, OneSidedItem | Spread) for item in added):
            return Growth(self.items, self.appended, [*self.tail, *added])
        if self.items is None:
            return Growth(None, [*self.appended, *added], [])
        return [*self.items, *added]


State: TypeAlias = Value | list[Value] | dict[Token, tuple[Value, Value]] | Position | Growth | None
TAKEN_BACK = (AppendEffect, AttributeEffect, ContentsEffect, CellEffect)
CHANGES = "it changes objects of the program"


def state_of(s: CaptureState, value: Value, name: str) -> object:
    """What a place holds; MISSING if it cannot be set to that again."""
    if isinstance(value, Object) and type(value.attrs) is dict and not value.is_field(name):
        if name in value.attrs or value.original is MISSING:
            return value.attrs.get(name)
        return value.instance_attr(s, name) if not is_slot(value.cls, name) else MISSING
    if isinstance(value, List):
        grows = value._items is None or value.tail
        return growth_of(value) if grows else list(value.items(s))
    if isinstance(value, Dict) and not name:
        items = value.items(s)
        return dict(items) if type(items) is dict else MISSING
    if isinstance(value, Cell):
        return value.load(s)
    if isinstance(value, ITERATORS):
        return MISSING if value.position is None else Position(value.position)
    return Tensor(value.fake) if isinstance(value, Tensor) and not name else MISSING


def growth_of(value: List) -> Growth:
    return Growth(None if value._items is None else list(value._items), list(value.appended), list(value.tail))


def set_state(value: Value, name: str, state: State) -> None:
    if isinstance(value, Object):
        assert not isinstance(state, list | dict | Position | Growth)
        if state is None and not value.had_attr(name):
            value.attrs.pop(name, None)
        else:
            value.attrs[name] = state
    elif isinstance(value, List) and isinstance(state, Growth):
        value._items = None if state.items is None else list(state.items)
        value.appended, value.tail = list(state.appended), list(state.tail)
    elif isinstance(value, List):
        value._items, value.tail = list(cast(list[Value], state)), []
    elif isinstance(value, Dict):
        value._items = dict(cast(dict[Token, tuple[Value, Value]], state))
        value._pending = []
    elif isinstance(value, Cell):
        value.content = cast(Value | None, state)
        value.emptied = state is None
    elif isinstance(value, Tensor):
        value.fake = cast(Tensor, state).fake
    elif isinstance(value, ITERATORS):
        value.position = cast(Position, state).of


@final
@dataclass(frozen=True, eq=False)
class SideChanges:
    """What a side changes: the states behind it, and its effects; what it prints, logs or warns of."""

    changes: dict[Place, StateChange]
    after: dict[Place, object]
    effects: dict[Hashable, Effect]
    messages: list[Message]


@contextmanager
def changes_taken_back(s: CaptureState, done: list[SideChanges]) -> Iterator[None]:
    """Interpret a side; add what it has changed to `done`, and put back what was before, also if it fails."""
    outer, changes = s.counters.changed, dict[Place, StateChange]()
    before = s.effects.snapshot()
    s.counters.changed = changes
    try:
        yield
        after = {place: state_of(s, change.value, change.name) for place, change in changes.items()}
        effects = s.effects.snapshot()
        messages = messages_since(s, before)
    finally:
        s.counters.changed = outer
        for change in reversed(changes.values()):
            if change.before is not MISSING:
                set_state(change.value, change.name, cast(State, change.before))
        s.effects.restore(before)
    for key in {*before, *effects}:
        effect = effects.get(key)
        if isinstance(effect or before[key], ModeEffect):
            continue  # modes are what they were, see `without_progress`
        if key not in before and (effect in messages or (s.policy.carries is not None and is_call(effect))):
            del effects[key]
            continue  # an export leaves out what is printed
        if effect is not before.get(key) and (
            not isinstance(effect, TAKEN_BACK) or place_of(effect) not in changes or getattr(effect, "recreated", False)
        ):
            raise NotNested(CHANGES)
    done.append(SideChanges(changes, after, effects, [] if s.policy.carries is not None else messages))


def messages_since(s: CaptureState, before: Mapping[Hashable, Effect]) -> list[Message]:
    """What was printed, logged or warned of since, of values that are the same now."""
    found = [effect for effect in s.effects if isinstance(effect, CallEffect | OneSided) and effect.key not in before]
    messages = [effect for effect in found if effect.message]
    values = [value for effect in messages for value in effect.values()]
    if not all([value.is_unchanged(s) for value in values if isinstance(value, Deferred)]):
        raise NotNested("it changes a tensor after its text was printed")
    return messages


def is_call(effect: object) -> bool:
    return isinstance(effect, CallEffect) and not effect.writes


def place_of(effect: AppendEffect | AttributeEffect | ContentsEffect | CellEffect) -> Place:
    if isinstance(effect, CellEffect):
        return id(effect.cell), ""
    return id(effect.value), effect.name if isinstance(effect, AttributeEffect) else ""


@final
@dataclass(frozen=True, eq=False)
class Meeting:
    """A place that existed before the branch, and its states behind both sides."""

    change: StateChange
    left: State
    right: State

    def settle(self, state: State) -> None:
        set_state(self.change.value, self.change.name, state)


def met(
    s: CaptureState, sides: Sequence[SideChanges], known: set[int], made: tuple[set[int], set[int]]
) -> list[Meeting]:
    """The places to be joined; the changes of new objects are made again.

    `known`: the values from before the branch; `made`: the fakes that each side has made.

    Raises:
        NotNested: if a change cannot be taken back.
    """
    for side, own in zip(sides, made, strict=True):
        for place, change in side.changes.items():
            if is_new(change, known, own) and side.after[place] is not MISSING:
                set_state(change.value, change.name, cast(State, side.after[place]))
    found: list[Meeting] = []
    for place, change in {**sides[0].changes, **sides[1].changes}.items():
        if not is_new(change, known, made[0] | made[1]):
            states = [side.after.get(place, change.before) for side in sides]
            if MISSING in (change.before, *states):
                raise NotNested(CHANGES)
            found.append(Meeting(change, *cast(list[State], states)))
    return found


def is_new(change: StateChange, known: set[int], made: set[int]) -> bool:
    """Whether a side has made what is changed."""
    if isinstance(change.value, Tensor):  # the capture knows every tensor
        return isinstance(change.before, Tensor) and id(change.before.fake) in made
    return id(change.value) not in known and change.value.source is None


def note_joined(s: CaptureState, sides: Sequence[SideChanges]) -> None:
    """Note the effects and changes of both sides, now that their states are joined."""
    s.effects.restore({**sides[0].effects, **sides[1].effects})
    for side in sides:
        s.counters.has_changed(side.changes.values())
    if any(side.changes for side in sides):
        s.counters.change()


def may_be_absent(s: CaptureState, value: Value, name: str) -> bool:
    """Whether an attribute of an object can exist after one side alone."""
    if not isinstance(value, Object) or value.original is not MISSING or is_slot(value.cls, name):
        return False
    return value.foreign is None and id(value) not in s.part(AttributeTables).instance_dicts
