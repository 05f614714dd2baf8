"""Tuples, lists, named tuples, torch.Size, slices, and their iterators.

x.shape[0]        Tuple of Size, item 0
out.append(y)     changes the items of the List; if it is from outside, a side effect as well
states + (y,)     if `states` is from outside, a Tuple with it in `front`: neither its items nor its length are guarded
tokens + [n]      likewise, until the program changes `tokens`
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, final

import torch

from kiln.capture.interpreter.breaks import DataDependentValue, Raised
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    WRAPPERS,
    CallSite,
    CaptureState,
    Codegen,
    Token,
    Value,
    refuse_varying,
    will_change,
    wraps,
)
from kiln.capture.interpreter.effects import (
    Container,
    ContentsEffect,
    SideEffect,
    contents_key,
    emit_on_one_side,
    note_change,
)
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import ItemSource, Source
from kiln.support.records import dataclass


class Sequence(Value):
    """A tuple or list of values; items from outside are wrapped when first read.

    `appended` are new items of a list from outside, or behind the one in `front`, that the program has not read.
    """

    __slots__ = ("_items", "_read", "appended", "cls", "front", "original", "source")

    def __init__(
        self, items: list[Value] | None, cls: type, source: Source | None = None, original: Any = None
    ) -> None:
        self._items = items
        self._read: dict[int, Value] = {}
        """Items from outside that were read alone."""
        self.appended: list[Value] = []
        self.front: Sequence | None = None
        self.cls = cls
        self.source = source
        self.original = original

    def real(self) -> object:
        return super().real() if self.original is None else self.original

    def items(self, s: CaptureState) -> list[Value]:
        if self._items is None:
            self._items = self._load(s)
        return self._items

    def _load(self, s: CaptureState) -> list[Value]:
        return [self._item(s, index) for index in range(self._outside_length(s))]

    def _outside_length(self, s: CaptureState) -> int:
        """Of the object from outside, guarded, whatever a derived class says of it."""
        refuse_varying(s, self, self.source)
        s.guard_type(self)
        length = (tuple if isinstance(self.original, tuple) else list).__len__(self.original)
        s.guard(self.source, GuardKind.LENGTH, length)
        return length

    def _item(self, s: CaptureState, index: int) -> Value:
        """An item from outside, wrapped once."""
        found = self._read.get(index)
        if found is None:
            base = tuple if isinstance(self.original, tuple) else list
            source = ItemSource(self.source, index) if self.source is not None else None
            found = self._read[index] = s.wrap(base.__getitem__(self.original, index), source)
        return found

    def unread_item(self, s: CaptureState, index: int) -> Value | None:
        """An item from outside, with a guard that it is there, but none on the length: a loop may end before."""
        base = tuple if isinstance(self.original, tuple) else list
        if self._items is not None or self.source is None or index >= base.__len__(self.original):
            return None
        s.guard_type(self)
        item = base.__getitem__(self.original, index)
        s.guard(ItemSource(self.source, index), GuardKind.TYPE_IS, s.reference(type(item)))
        return self._item(s, index)

    def torch_arg(self, s: CaptureState) -> object:
        plain = [item.torch_arg(s) for item in self.items(s)]
        numbers = [item for item in plain if type(item) is int]
        if self.cls is torch.Size and len(numbers) == len(plain):
            return torch.Size(numbers)  # `x.new(size)` is not `x.new(values)`
        return self._build(plain)

    def constant(self, s: CaptureState) -> Any:
        plain = [item.constant(s) for item in self.items(s)]
        return torch.Size(plain) if self.cls is torch.Size else self._build(plain)

    def _build(self, plain: list[object]) -> object:
        if self.cls is list:
            return plain
        if self.cls is tuple:
            return tuple(plain)
        if self.cls is torch.Size:
            return tuple(plain)
        if hasattr(self.cls, "_make"):
            return self.cls._make(plain)
        if hasattr(self.cls, "n_sequence_fields"):
            return self.cls(plain)
        raise self.unsupported("rebuild", "its class is not known to be a plain container")

    def length(self, s: CaptureState) -> int:
        return self._outside_length(s) if self._items is None else len(self._items)

    def truth(self, s: CaptureState) -> bool:
        if self._items is None and self.appended:
            return True
        if self._items is None and self.source is not None and self.original:
            s.guard_type(self)  # that there is a first item
            s.guard(ItemSource(self.source, 0), GuardKind.TYPE_IS, s.reference(type(self.original[0])))
            return True
        return self.length(s) != 0

    def _from_end(self, s: CaptureState, index: int) -> Value | None:
        """The item at a negative index, without a guard on the length."""
        index += len(self.appended)
        if index >= 0:
            return self.appended[index]
        outside = self.front or self
        if outside.source is None or outside.original is None or index < -len(outside.original):
            return None
        s.guard_type(outside)
        return outside._item(s, index)

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        index = as_index(s, key)
        if self._items is None and type(index) is int:
            if index < 0 and (found := self._from_end(s, index)) is not None:
                return found
            length = self.length(s)
            if self._items is None and -length <= index < length:
                return self._item(s, index % length)
        items = self.items(s)
        if isinstance(index, slice):
            try:
                cut = items[index]
            except (TypeError, ValueError) as error:
                raise s.error(type(error), *error.args) from None
            whole = self.cls is tuple and len(cut) == len(items) and index.step in (None, 1)
            return self if whole else self.sibling(cut)
        try:
            return items[index]  # type: ignore[no-any-return]
        except IndexError as error:
            text = str(error).replace("list", self.cls.__name__, 1)
            raise s.error(IndexError, text) from None
        except TypeError as error:
            text = str(error).replace("list indices", f"{self.cls.__name__} indices", 1)
            raise s.error(TypeError, text if issubclass(self.cls, list | tuple) else str(error)) from None

    def followed_by(self, s: CaptureState, other: Sequence) -> Sequence | None:
        """`self + other` without a guard on what is unread; None where that cannot be."""
        return None

    def sibling(self, items: list[Value]) -> Value:
        if isinstance(self, List):
            return List(items)
        return Tuple(items, torch.Size if self.cls is torch.Size else tuple)

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        refuse_varying(s, self, self.source)
        found = None if self.cls in PLAIN else s.classes.lookup(self.cls, "__iter__")
        if found is not None and isinstance(found[1], types.FunctionType):
            return super().iterate(s, site)
        return SequenceIterator(self)


PLAIN = (list, tuple, torch.Size)


@final
class Tuple(Sequence):
    """A tuple; `cls` may be a named tuple or torch.Size."""

    __slots__ = ()

    def __init__(
        self, items: list[Value] | None, cls: type = tuple, source: Source | None = None, original: Any = None
    ) -> None:
        super().__init__(items, cls, source, original)

    def followed_by(self, s: CaptureState, other: Sequence) -> Tuple | None:
        """`self + other`, where this one is from outside and was not read; None where it was."""
        if self.cls is not tuple or self._items is not None or not self.truth(s):
            return None
        made = Tuple(None)
        made.front, made.appended = self.front or self, [*self.appended, *other.items(s)]
        return made if other.items(s) else self

    def _load(self, s: CaptureState) -> list[Value]:
        return super()._load(s) if self.front is None else [*self.front.items(s), *self.appended]

    def length(self, s: CaptureState) -> int:
        if self._items is None and self.front is not None:
            return self.front.length(s) + len(self.appended)
        return super().length(s)

    def key(self, s: CaptureState) -> Token:
        return tuple([item.key(s) for item in self.items(s)])

    def emit(self, g: Codegen) -> None:
        if self._items is None and self.front is not None:
            g.make(self, operator.add, self.front, Tuple(self.appended))
            return
        items = self.items(g.state)
        if self.cls is tuple:
            for item in items:
                g.emit(item)
            g.body.op("BUILD_TUPLE", len(items))
            g.remember(self)
            return
        made = self.cls in g.state.classes.made
        if made:
            g.body.const(tuple.__new__)
        g.emit(getattr(self.cls, "_make", self.cls) if not made else g.state.classes.written(self.cls))
        for item in items:
            g.emit(item)
        g.body.op("BUILD_TUPLE", len(items)).call(1 + made)
        g.remember(self)


@final
class List(Sequence, Container):
    """A list. `longer` are those that have it in `front`.

    `tail` are its last items, from the first one on that it has after one side of a branch alone. They are not read.
    """

    __slots__ = ("longer", "tail")

    def __init__(self, items: list[Value] | None, source: Source | None = None, original: Any = None) -> None:
        super().__init__(items, list, source, original)
        self.longer: list[List] = []
        self.tail: list[Value] = []

    def require_known(self) -> None:
        """Call before the items or their number are read. Raises where data decide them."""
        for item in self.tail:
            if isinstance(item, Spread):
                raise item.need
            if isinstance(item, OneSidedItem):
                raise item.need or DataDependentValue(operation="the length of a list")

    def items(self, s: CaptureState) -> list[Value]:
        self.require_known()
        return super().items(s)

    def truth(self, s: CaptureState) -> bool:
        if self.tail and (self._items or self.appended):
            return True
        self.require_known()
        return super().truth(s)

    def _from_end(self, s: CaptureState, index: int) -> Value | None:
        self.require_known()
        return super()._from_end(s, index)

    def followed_by(self, s: CaptureState, other: Sequence) -> List | None:
        """`self + other`, without a guard on the length; None where the frame has read or changed this list."""
        made = List([])
        if not made.begins_with(s, self):
            return None
        made.appended = list(other.items(s))
        return made

    def begins_with(self, s: CaptureState, front: List) -> bool:
        """Fill this list with another one, unread; False where it is not empty, or the other was read or changed."""
        has_new = front.appended or front.tail
        unread = front._items is None and not has_new and front.source is not None and front.cls is list
        if not unread or self._items != [] or self.source is not None or s.counters.changed is not None:
            return False
        s.guard_type(front)
        self._items, self.front = None, front
        front.longer.append(self)
        return True

    def settle(self, s: CaptureState) -> None:
        """Call before it is changed: what has it in `front` reads it now."""
        for made in self.longer:
            made.items(s)
        self.longer.clear()

    def append(self, s: CaptureState, item: Value) -> None:
        """Without a guard on the length, so that a growing log does not recompile."""
        self.settle(s)
        unread = self._items is None and self.source is not None and self.cls is list
        if isinstance(item, Spread) and unread and not self.tail:
            will_change(s, self)
            s.guard_type(self)
            s.effects.note(AppendEffect(self))
            self.tail.append(item)
        elif self.tail or isinstance(item, Spread):
            note_change(s, self)
            self.tail.append(item)
        elif unread:
            will_change(s, self)
            s.guard_type(self)
            s.effects.note(AppendEffect(self))
            self.appended.append(item)
        elif self._items is None and self.front is not None and s.counters.changed is None:
            self.appended.append(item)
        else:
            self.change(s).append(item)

    def extend(self, s: CaptureState, added: Value) -> None:
        """`list.extend`: the code that an iterator runs finds the items before in the list."""
        if self._items is not None and not self.tail and isinstance(added, Sequence) and added.cls in PLAIN:
            self.change(s).extend(added.items(s))
            return
        for item in listed_one_by_one(s, added):
            self.append(s, item)

    def _load(self, s: CaptureState) -> list[Value]:
        if self.front is not None:
            return [*self.front.items(s), *self.appended]
        items = super()._load(s)
        if self.appended:
            items += self.appended
            s.effects.replace(ContentsEffect(self))
        return items

    def length(self, s: CaptureState) -> int:
        self.require_known()
        return len(self.items(s)) if self.appended else super().length(s)

    def change(self, s: CaptureState) -> list[Value]:
        """The items, to be changed."""
        self.settle(s)
        items = self.items(s)
        note_change(s, self)
        return items

    def set_item(self, s: CaptureState, key: Value, value: Value, site: CallSite = NOT_RESUMABLE) -> None:
        index = as_index(s, key)
        items = self.change(s)
        try:
            items[index] = all_items(s, value) if isinstance(index, slice) else value  # type: ignore[assignment]
        except (IndexError, TypeError, ValueError) as error:
            raise s.error(type(error), *error.args) from None

    def del_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> None:
        try:
            del self.change(s)[as_index(s, key)]
        except (IndexError, TypeError) as error:
            raise s.error(type(error), *error.args) from None

    def key(self, s: CaptureState) -> Token:
        raise s.error(TypeError, "unhashable type: 'list'")

    def emit(self, g: Codegen) -> None:
        g.body.op("BUILD_LIST", 0)
        g.remember(self)
        self.emit_fill(g)

    def emit_contents(self, g: Codegen) -> None:
        """By list's own method, which a subclass may override."""
        contents = List(list(super().items(g.state)))
        contents.tail = self.tail
        g.run(list.__setitem__, self, slice(None), contents)

    def emit_fill(self, g: Codegen) -> None:
        """Fill the empty list on the stack; its items may refer to it."""
        unread = self.front if self._items is None else None
        if unread is not None:
            g.emit(unread)
            g.body.op("LIST_EXTEND", 1)
        known = self.appended if unread is not None else super().items(g.state)
        for item in (*known, *self.tail):
            emit_item(g, item, partial(append_to_built, g))


@final
@dataclass(frozen=True, slots=True, eq=False)
class OneSidedItem(Value):
    """An item that a list has if `condition`, a tensor of one element, is `taken`.

    Where the list is read, `need` lets the capture begin again; without one, the graph breaks there.
    """

    condition: Value
    taken: bool
    item: Value
    need: Exception | None

    def values(self) -> Iterator[Value]:
        yield self.condition
        if isinstance(self.item, OneSidedItem):
            yield from self.item.values()
        else:
            yield self.item.made if isinstance(self.item, Spread) else self.item


@final
@dataclass(frozen=True, slots=True, eq=False)
class Spread(Value):
    """The items of a list that is made behind the region. Where they are read, `need` breaks the graph there."""

    made: Value
    need: Exception


def append_to_built(g: Codegen, item: Value) -> None:
    """To the list on the stack."""
    g.emit(item.made if isinstance(item, Spread) else item)
    g.body.op("LIST_EXTEND" if isinstance(item, Spread) else "LIST_APPEND", 1)


def append_to(g: Codegen, value: List, item: Value) -> None:
    """To a list from outside."""
    if isinstance(item, Spread):
        g.run(list.extend, value, item.made)
    else:
        g.run(list.append, value, item)


def emit_item(g: Codegen, item: Value, write: Callable[[Value], object]) -> None:
    """`write(item)`, where the list has it."""
    if isinstance(item, OneSidedItem):
        inner = item.item
        emit_on_one_side(g, item.condition, item.taken, item.values(), lambda: emit_item(g, inner, write))
    else:
        write(item)


@final
@dataclass(frozen=True)
class AppendEffect(SideEffect):
    """A list from outside was extended; its items were not read."""

    value: List
    writes = True

    @property
    def key(self) -> Hashable:
        return contents_key(self.value)

    def emit(self, g: Codegen) -> None:
        if self.value._items is not None:  # read in a side of a branch, whose effects were taken back
            self.value.emit_contents(g)
            return
        for item in (*self.value.appended, *self.value.tail):
            emit_item(g, item, partial(append_to, g, self.value))


@final
class SequenceIterator(Value):
    """An iterator over a tuple or list; like Python's, it sees items appended meanwhile, but none once it has ended."""

    __slots__ = ("ended", "index", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.index = 0
        self.ended = False

    @property
    def position(self) -> tuple[int, ...]:
        return self.index, self.ended

    @position.setter
    def position(self, position: tuple[int, ...]) -> None:
        self.index, self.ended = position[0], bool(position[1])

    def remaining(self, s: CaptureState) -> int:
        return 0 if self.ended else self.sequence.length(s) - self.index

    def python_type(self) -> type:
        return type(iter([])) if isinstance(self.sequence, List) else type(iter(()))

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def next(self, s: CaptureState) -> Value | None:
        item = None if self.ended else self.sequence.unread_item(s, self.index)
        if item is not None:
            will_change(s, self)
            self.index += 1
            return item
        items = self.sequence.items(s)
        will_change(s, self)
        if self.ended or self.index >= len(items):
            self.ended = True
            return None
        self.index += 1
        return items[self.index - 1]

    def emit(self, g: Codegen) -> None:
        # A partly consumed iterator: a new one, advanced with `__setstate__`.
        if self.ended:
            g.emit(List([]) if isinstance(self.sequence, List) else Tuple([]))
            g.body.op("GET_ITER")
            g.remember(self)
            return
        outside = self.sequence.original
        if isinstance(outside, list) and list.__len__(outside) < self.index:  # the effects that lengthen it come later
            g.make(self, iterate_from, self.sequence, self.index)
            return
        g.emit(self.sequence)
        g.body.op("GET_ITER")
        g.remember(self)
        if self.index:
            g.body.attr("__setstate__").const(self.index).call(1).op("POP_TOP")
            g.emit(self)


def iterate_from(items: list[object], index: int) -> Iterator[object]:
    """As a list's own iterator: sees items appended meanwhile."""
    while index < len(items):
        yield items[index]
        index += 1


@final
class ReversedList(Value):
    """What `reversed` makes of a list: like Python's, it sees items that change meanwhile."""

    __slots__ = ("index", "sequence")
    cls: type = type(reversed([]))

    def __init__(self, sequence: List, index: int) -> None:
        self.sequence, self.index = sequence, index

    @property
    def position(self) -> tuple[int, ...]:
        return (self.index,)

    @position.setter
    def position(self, position: tuple[int, ...]) -> None:
        (self.index,) = position

    def remaining(self, s: CaptureState) -> int:
        return self.index + 1

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def next(self, s: CaptureState) -> Value | None:
        items = self.sequence.items(s)
        will_change(s, self)
        if not 0 <= self.index < len(items):
            self.index = -1
            return None
        self.index -= 1
        return items[self.index + 1]

    def emit(self, g: Codegen) -> None:
        outside = self.sequence.original
        if isinstance(outside, list) and list.__len__(outside) <= self.index:  # the effects that lengthen it come later
            g.make(self, iterate_down_from, self.sequence, self.index)
            return
        g.make(self, reversed, self.sequence)
        g.body.attr("__setstate__").const(self.index).call(1).op("POP_TOP")
        g.emit(self)


def iterate_down_from(items: list[object], index: int) -> Iterator[object]:
    while 0 <= index < len(items):
        yield items[index]
        index -= 1


@final
@dataclass(frozen=True, eq=False)
class Slice(Value):
    """A slice made in the frame; its parts may be symbolic."""

    parts: list[Value]
    cls = slice

    def constant(self, s: CaptureState) -> Any:
        return slice(*(part.constant(s) for part in self.parts))

    def torch_arg(self, s: CaptureState) -> object:
        return slice(*(part.torch_arg(s) for part in self.parts))

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        parts = [s.const(None), *self.parts] if len(self.parts) == 1 else self.parts
        names = ("start", "stop", "step")
        if name in names:
            index = names.index(name)
            return parts[index] if index < len(parts) else s.const(None)
        return super().get_attr(s, name, site)

    def emit(self, g: Codegen) -> None:
        g.make(self, slice, *self.parts)


def as_index(s: CaptureState, key: Value) -> Any:
    """A subscript as a number or a slice of numbers, by the `__index__` of the program if it has one."""
    if isinstance(key, Slice):
        return slice(*[as_index(s, part) for part in key.parts])
    if not key.is_constant and isinstance(number := s.model.plain(s, key), int):
        return number
    if key.is_constant or key.is_torch or s.classes.lookup(key.python_type(), "__index__") is None:
        return key.constant(s)
    found = s.call_special(key, "__index__", [], {})
    if not issubclass(found.python_type(), int):
        raise s.error(TypeError, f"__index__ returned non-int (type {found.type_name()})")
    return found.constant(s)


def all_items(s: CaptureState, value: Value) -> list[Value]:
    """Everything an iterable yields."""
    return list(one_by_one(s, value))


def one_by_one(s: CaptureState, value: Value) -> Iterator[Value]:
    """The same, for a caller whose use of an item is seen by what the iterator runs for the next one."""
    if isinstance(value, Sequence) and value.cls in (list, tuple, torch.Size):
        return iter(list(value.items(s)))
    return remaining(s, consumed(s, value))


def held_items(s: CaptureState, value: Value) -> list[Value]:
    """What a container holds, whatever the `__iter__` of a derived class yields."""
    return list(value.items(s)) if isinstance(value, Sequence) else all_items(s, value)


def remaining(s: CaptureState, iterator: Value) -> Iterator[Value]:
    while (item := iterator.next(s)) is not None:
        yield item


def rest(s: CaptureState, iterator: Value) -> list[Value]:
    return list(remaining(s, iterator))


def listed(s: CaptureState, value: Value) -> list[Value]:
    """The items of a list or tuple made of an iterable, whose length Python asks for before it takes them."""
    return list(listed_one_by_one(s, value))


def listed_one_by_one(s: CaptureState, value: Value) -> Iterator[Value]:
    if isinstance(value, Sequence) and value.cls in PLAIN:
        return iter(list(value.items(s)))
    iterator = consumed(s, value)
    ask_length(s, value)
    return remaining(s, iterator)


def tuple_items(s: CaptureState, value: Value) -> list[Value]:
    """The items of a tuple made of an iterable: CPython 3.14 does not ask for its length."""
    plain = isinstance(value, Sequence) and value.cls in PLAIN
    return listed(s, value) if plain or not LONGER_TUPLES else rest(s, consumed(s, value))


LONGER_TUPLES = sys.version_info >= (3, 14)
"""CPython makes a tuple longer as the items come."""


def ask_length(s: CaptureState, value: Value) -> None:
    """`operator.length_hint`, for the code of the program that it runs."""
    if value.is_torch:
        if s.see is not None:
            value.length(s)
        return
    if runs_code(s, value, "__len__"):
        try:
            value.length(s)
            return
        except Raised as raised:
            if not issubclass(raised.value.python_type(), TypeError):
                raise
    if runs_code(s, value, "__length_hint__"):
        hint = s.call_special(value, "__length_hint__", [], {})
        if s.is_none(hint, NotImplemented):
            return
        if not issubclass(hint.python_type(), int):
            raise s.error(TypeError, f"__length_hint__ must be an integer, not {hint.type_name()}")
        if hint.constant(s) < 0:
            raise s.error(ValueError, "__length_hint__() should return >= 0")


def runs_code(s: CaptureState, value: Value, name: str) -> bool:
    """Whether a special method is the program's; those of torch's own containers have no effects."""
    found = s.classes.lookup(value.python_type(), name)
    return (
        found is not None
        and type(found[1]) is types.FunctionType
        and not (found[1].__module__ or "").startswith("torch.nn.modules.")
    )


def consumed(s: CaptureState, value: Value) -> Value:
    """An iterator over `value`, which the current instruction advances: a break behind it is one in front of it."""
    iterator = value.iterate(s)
    if iterator is value:
        s.counters.change()
    return iterator


def is_fixed(s: CaptureState, value: Value) -> bool:
    """Whether it is immutable: a constant, or a tuple of constants."""
    return value.is_constant or (isinstance(value, Tuple) and all(is_fixed(s, item) for item in value.items(s)))


GENERATED = frozenset(("__new__", "__repr__", "__getnewargs__", "__replace__"))
"""Methods that named tuples have."""
UNIMPORTANT = frozenset(("__str__", "__format__", "__getattr__", "__reduce__", "__reduce_ex__", "__init_subclass__"))
"""Others that the program may write: not asked where the items of a tuple are read."""


def is_plain_tuple(s: CaptureState, cls: type) -> bool:
    """Whether `Tuple` is the model of its instances: no special method of the program says what its items are."""
    if cls in PLAIN or hasattr(cls, "n_sequence_fields"):
        return True
    special = {name for kind in cls.__mro__[:-2] for name in vars(kind) if name[:2] == name[-2:] == "__"}
    found = [s.classes.lookup(cls, name) for name in special - GENERATED - UNIMPORTANT]
    own = any(entry is not None and type(entry[1]) is types.FunctionType for entry in found)
    return hasattr(cls, "_fields") and hasattr(cls, "_make") and not own


@wraps(tuple, torch.Size, subclasses=True)
def wrap_tuple(s: CaptureState, real: tuple[object, ...], source: Source | None) -> Value:
    return Tuple(None, type(real), source, real) if is_plain_tuple(s, type(real)) else WRAPPERS[object](s, real, source)


@wraps(list)
def wrap_list(s: CaptureState, real: list[object], source: Source | None) -> Value:
    return s.identities.same_object(real, source, lambda: List(None, source, real))
