"""Sets: their items by token, and their order where the program may see it.

{x, y} | other    the items in the order that a real set of the same tokens has
"a" in names      a set from outside of plain constants: whether it holds this one is guarded, nothing else
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable
from typing import Any, cast, final

from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Token,
    Value,
    refuse_varying,
    wraps,
)
from kiln.capture.interpreter.effects import Container, note_change
from kiln.capture.interpreter.hashing import elements_of, set_element
from kiln.capture.interpreter.process_hashes import guard_hashes
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.hashed_key import (
    HashedKey,
    is_hashed_by_identity,
    is_hashed_by_program,
    refuse_loud_keys,
)
from kiln.capture.interpreter.variables.key_iterator import KeyIterator
from kiln.capture.interpreter.variables.mapping import Dict, emit_refill
from kiln.capture.interpreter.variables.sequence import List, Tuple, all_items, one_by_one
from kiln.capture.interpreter.variables.set_tables import (
    Table,
    alike,
    filled,
    grown,
    made,
    of_kind,
    order_for,
    slots,
)
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import GuardKind, SetExpectation, SetMember
from kiln.runtime.guards.reference import path_of
from kiln.runtime.guards.source import AttrSource, ItemSource, KeysSource, ModuleGlobalSource, Source

COMBINED = ("union", "intersection", "difference", "symmetric_difference", "copy")
PLAIN = (int, float, bool, str, bytes, types.NoneType)


def holds_constant(s: CaptureState, value: Set, item: Value) -> bool | None:
    """Whether a set from outside holds a plain constant; only that is guarded. None where more has to be known."""
    if value._items is not None or value.source is None or not item.is_constant:
        return None
    sought, original = item.constant(s), value.original
    if type(sought) not in PLAIN or sought != sought or not all(type(held) in PLAIN for held in original):
        return None
    base = set if isinstance(original, set) else frozenset
    found = base.__contains__(original, sought)  # type: ignore[operator]
    s.guard_type(value)
    s.guard(value.source, GuardKind.SET_HOLDS, SetMember(sought, found))
    return found


@final
class Set(Container):
    """A set or frozenset made in the frame or found outside."""

    __slots__ = ("_items", "_table", "cls", "original", "origins", "source")

    def __init__(
        self, items: dict[Token, Value] | None, cls: type = set, source: Source | None = None, original: Any = None
    ) -> None:
        self._items = items
        self.cls = cls
        self.source = source
        self.original = original
        self._table: set[Token] | frozenset[Token] | None = None
        """A real set on which was done what the program did to this one, up to single additions and removals."""
        self.origins: tuple[Set, ...] = () if original is None else (self,)
        """Sets from outside on whose order that of this one depends."""

    def items(self, s: CaptureState) -> dict[Token, Value]:
        if self._items is None:
            self._items = self._load(s)
        return self._items

    def _load(self, s: CaptureState) -> dict[Token, Value]:
        """Constants are guarded at once; other items also have a path, by import or as the nth item.

        The order is guarded only where a path needs it: it differs between processes.
        """
        refuse_varying(s, self, self.source)
        s.guard_type(self)
        paths = {id(item): import_source(item) for item in self.original if not is_constant(item)}
        self._guard_items(s, ordered=None in paths.values())
        items: dict[Token, Value] = {}
        for index, item in enumerate(self.original):
            source = None
            if self.source is not None and not is_constant(item):
                source = paths[id(item)] or KeysSource(self.source, index)
            value = s.wrap(item, source)
            by_identity = isinstance(source, KeysSource) and is_hashed_by_identity(item)
            if source is None or by_identity or value.real() is not item or is_hashed_by_program(self, item):
                items[value.key(s)] = value
            else:
                items[item] = value.identified()
        return items

    def _guard_items(self, s: CaptureState, ordered: bool) -> None:
        if self.source is not None:
            items = tuple([item if is_constant(item) else s.reference(item) for item in self.original])
            s.guard(self.source, GuardKind.SET_ITEMS, SetExpectation(items, ordered))

    def change(self, s: CaptureState) -> dict[Token, Value]:
        items = self.items(s)
        note_change(s, self)
        return items

    def length(self, s: CaptureState) -> int:
        if self._items is None:
            refuse_varying(s, self, self.source)
            s.guard_type(self)
            s.guard(self.source, GuardKind.LENGTH, len(self.original))
            return len(self.original)
        return len(self._items)

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        keys = dict(self.in_order(s))
        return KeyIterator(self, self.items(s), keys, "set", "keys", keys.__getitem__)

    def in_order(self, s: CaptureState) -> dict[Token, Value]:
        """The items in the order of a real set with the same history; guarded, since equal sets may differ in it."""
        items = self.items(s)
        for origin in self.origins:
            if len(origin.original) > 1:
                origin._guard_items(s, ordered=True)
        if any(isinstance(token, Value) for token in items):  # objects made in the frame have no hash yet
            return items
        table = self.table(s)
        if table is self.original:
            return items
        guard_hashes(s, items if len(items) > 1 else ())
        return {token: items[token] for token in table}

    def table(self, s: CaptureState) -> set[Token] | frozenset[Token]:
        """A real set of the tokens with the same history; not to be changed."""
        items = self.items(s)
        if self.original is not None and len(items) == len(self.original):
            same = all(value.real() is item for value, item in zip(items.values(), self.original, strict=True))
            if same or (not any(isinstance(token, HashedKey) for token in items) and items.keys() == self.original):
                return cast("set[Token]", self.original)
        own = self.own_table(s)
        if own is None:
            raise self.unsupported("iterate", "its order depends on what it held before")
        return own

    def own_table(self, s: CaptureState) -> set[Token] | frozenset[Token] | None:
        """The same, to be changed if the set may be; None if the history is not known."""
        table = self._table = self._copy() if self._table is None else self._table
        if isinstance(table, set):  # changed one by one: larger changes make the table of a set larger or smaller
            items = self.items(s)
            for token in table - items.keys():
                table.discard(token)
            for token in items:
                table.add(token)
        return table

    def combine(self, s: CaptureState, operation: str, others: Args) -> Set:
        """A new set: `union`, `intersection`, `difference`, `symmetric_difference` or `copy`."""
        others = iterated(s, others)
        table = getattr(self.table(s), operation)(*[real_items(s, other) for other in others])
        made = Set(
            chosen(s, table, in_order_of_choice(s, operation, self, others)),
            set if issubclass(self.cls, set) else frozenset,
        )
        made._table, made.origins = table, origins_of([self, *others])
        return made

    def as_set(self, s: CaptureState) -> Set:
        """`set(self)`."""
        made = Set(dict(self.items(s)))
        made._table, made.origins = set(self.table(s)), self.origins
        return made

    def add(self, s: CaptureState, item: Value) -> None:
        token = set_element(s, item)
        if token not in self.items(s):
            self.change(s)[token] = item

    def _drop(self, s: CaptureState, item: Value) -> None:
        if set_element(s, item) in self.items(s):
            del self.change(s)[set_element(s, item)]

    def combine_in_place(self, s: CaptureState, operation: str, others: Args) -> None:
        """`update`, `intersection_update`, `difference_update` or `symmetric_difference_update`."""
        change = {"update": self.add, "difference_update": self._drop}.get(operation)
        if change is not None and len(others) > 1:
            for other in others:
                self.combine_in_place(s, operation, [other])
            return
        if change is not None and any(map(runs_for_items, others)):
            for item in one_by_one(s, others[0]):
                change(s, item)
            return
        others, own = iterated(s, others), self.own_table(s)
        table = own if isinstance(own, set) else set(self.items(s))
        getattr(table, operation)(*[real_items(s, other) for other in others])
        kept = chosen(s, table, in_order_of_choice(s, operation, self, others))
        items = self.change(s)
        items.clear()
        items.update(kept)
        self.origins = origins_of([self, *others])

    def _copy(self) -> set[Token] | None:
        """A set that orders items as the original does."""
        if self.original is None:
            return set()
        return next(
            (found for found in (set(self.original), grown(self.original)) if alike(found, self.original)), None
        )

    def constant(self, s: CaptureState) -> object:
        items = self.in_order(s)
        if all(map(is_constant, items)):
            return self.cls(self.table(s))
        return self.cls(item.constant(s) for item in items.values())

    def key(self, s: CaptureState) -> Token:
        if self.cls is set:
            raise s.error(TypeError, "unhashable type: 'set'")
        return frozenset(self.items(s))

    def emit(self, g: Codegen) -> None:
        items = self.items(g.state)
        refuse_loud_keys(g.state, list(items))
        if self.cls is not set:
            g.emit(g.state.classes.written(self.cls))
        if not emit_table(self, g, made, [], of_kind(self.cls, grown(items))):
            for item in items.values():
                g.emit(item)
            g.body.op("BUILD_SET", len(items))
        if self.cls is not set:
            g.body.call(1)
        g.remember(self)

    def emit_contents(self, g: Codegen) -> None:
        """Remove and add what changed: to clear and refill a set may change the order of its items."""
        items, original = self.items(g.state), self.original or set()
        removed = [token for token in original if token not in items]
        if not all(map(is_constant, removed)):
            emit_refill(g, self, Set(self._items), set)
            return
        added = [value for token, value in items.items() if token not in original]
        changed = self._copy()
        if changed is not None and self._table is not None:
            for token in removed:
                changed.discard(token)
            if emit_table(self, g, filled, [self], grown(items, changed)):
                g.body.op("POP_TOP")
                return
        for name, values in (("discard", map(Constant, removed)), ("add", added)):
            for value in values:
                g.run(vars(set)[name], self, value)


def take_order(s: CaptureState, value: Set, real: set[Token] | frozenset[Token]) -> None:
    """Give a set the order of a real one that nothing else holds, if they have the same items."""
    if value.items(s).keys() == real:
        value._table = real


def emit_table(value: Set, g: Codegen, function: Callable[..., object], target: Args, plain: Table[Token]) -> bool:
    """Call `function` with the items and the slots of their table, unless a `plain` set has the same order."""
    items = value.items(g.state)
    table = value.own_table(g.state) if all(map(is_constant, items)) else None
    if table is None or alike(plain, table):
        return False
    order = order_for(table, items)
    if order is None:
        return False
    guard_hashes(g.state, items)
    g.make(None, function, *target, Tuple([items[token] for token in order]), slots(table))
    return True


def runs_for_items(value: Value) -> bool:
    """Whether its items come from an iterator, or from what makes one, which may run code for each."""
    return not isinstance(value, (Set, Dict, Constant, Tuple, List))


def iterated(s: CaptureState, values: Args) -> list[Value]:
    """The values, with lists in place of iterators, which can be read once."""
    kept = (Set, Dict, Constant)
    return [value if isinstance(value, kept) else List(all_items(s, value)) for value in values]


def tokens_of(s: CaptureState, value: Value) -> dict[Token, Value]:
    """The items of an iterable by their tokens; of a set in any order."""
    return value.items(s) if isinstance(value, Set) else elements_of(s, all_items(s, value))


def real_items(s: CaptureState, value: Value) -> Iterable[Token]:
    """The tokens in a real object that the methods of sets treat as they treat the program's."""
    if isinstance(value, Set):
        return value.table(s)
    if isinstance(value, Constant) and isinstance(value.value, frozenset):
        return value.value
    return tokens_of(s, value) if isinstance(value, Dict) else list(tokens_of(s, value))


def origins_of(values: Args) -> tuple[Set, ...]:
    return tuple({id(found): found for value in values if isinstance(value, Set) for found in value.origins}.values())


def in_order_of_choice(s: CaptureState, operation: str, own: Set, others: Args) -> list[Value]:
    """From which operand equal elements are taken: those of an intersection from the one that CPython iterates over."""
    found: list[Value] = [own]
    for other in others:
        is_larger = isinstance(other, Set) and len(other.items(s)) > len(own.items(s))
        from_other = operation.startswith("intersection") and not is_larger
        found = [other, *found] if from_other else [*found, other]
    return found


def chosen(s: CaptureState, table: set[Token], values: Args) -> dict[Token, Value]:
    """The items of `values` whose tokens are in `table`; of equal items the first."""
    known: dict[Token, Value] = {}
    for value in values:
        for token, item in tokens_of(s, value).items():
            known.setdefault(token, item)
    return {token: item for token, item in known.items() if token in table}


def import_source(value: object) -> Source | None:
    """The path to a class, function or enum member through its module."""
    module, _, qualname = path_of(value).partition(":")
    if not qualname:
        return None
    first, *names = qualname.split(".")
    source: Source = ModuleGlobalSource(module, first)
    member = names.pop() if isinstance(value, enum.Enum) else None
    for name in names:
        source = AttrSource(source, name)
    return source if member is None else ItemSource(AttrSource(source, "_member_map_"), member)


@wraps(set, frozenset)
def wrap_set(s: CaptureState, real: set[Token] | frozenset[Token], source: Source | None) -> Value:
    return s.identities.same_object(real, source, lambda: Set(None, type(real), source, real))
