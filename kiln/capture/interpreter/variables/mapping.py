"""Dicts and sets, and iteration over them.

cfg["size"]       a dict from outside: only this item is wrapped; its path implies that it exists
"x" in cfg        present: the path; absent: a guard that the key is absent
cfg["y"] = 3      an effect that stores this item, whatever else there is
for k in cfg      all keys, in order, are guarded

The keys of a module's hooks come from a counter, so they differ between equal layers: such a dict is guarded by the
number of its items, its values by their position, and its keys only where the program looks at them.
"""

from __future__ import annotations

import enum
import gc
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast, final

from kiln.capture.interpreter.core import (
    MISSING,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Token,
    Value,
    will_change,
    wraps,
)
from kiln.capture.interpreter.effects import Container, emit_attribute, note_change
from kiln.capture.interpreter.identities import PlainReads
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.hashed_key import (
    HashedKey,
    is_hashed_by_identity,
    is_hashed_by_program,
    refuse_loud_keys,
)
from kiln.capture.interpreter.variables.key_iterator import KeyIterator
from kiln.capture.interpreter.variables.sequence import List, Sequence, Tuple, all_items
from kiln.capture.interpreter.variables.set_tables import (
    Table,
    alike,
    filled,
    grown,
    made,
    of_kind,
    order_for,
    plain_set,
    slots,
)
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import AliasExpectation, GuardKind, SetExpectation, SetMember
from kiln.runtime.guards.reference import path_of
from kiln.runtime.guards.source import (
    AttrSource,
    DictAttrSource,
    GlobalSource,
    ItemSource,
    KeysSource,
    ModuleGlobalSource,
    Source,
    ValuesSource,
)

COMBINED = ("union", "intersection", "difference", "symmetric_difference", "copy")


@final
class Dict(Container):
    """A dict. `_items` maps tokens to (key, value) once all are loaded; `_found` holds single items until then.

    `_stored` has the keys of those that the program stored until then; `_pending` are stores after which nothing was
    read, so that their keys are not guarded. `counted`: its keys are numbers from a counter, and guarded late.
    """

    __slots__ = (
        *("_found", "_items", "_pending", "_stored", "attrs", "behind", "cls", "counted", "factory", "original"),
        "source",
    )

    def __init__(
        self,
        items: dict[Token, tuple[Value, Value]] | None,
        cls: type = dict,
        source: Source | None = None,
        original: Any = None,
    ) -> None:
        self._items = items
        self._found: dict[Token, Value] = {}
        self._stored: dict[Token, Value] = {}
        self._pending: list[tuple[Value, Value]] = []
        self.cls = cls
        self.source = source
        self.original = original
        self.factory: Value | None = None
        self.behind: Value | None = None
        """Of a `types.MappingProxyType` made in the frame: the mapping, which has the same items."""
        self.attrs: dict[str, Value] = {}
        """Attributes of an `OrderedDict` made in the frame, such as the `_metadata` of `state_dict()`."""
        self.counted = has_counted_keys(source) and all(
            type(key) is int for key in base_of(original).__iter__(original)
        )

    def real(self) -> object:
        return super().real() if self.original is None else self.original

    def find(self, s: CaptureState, token: Token) -> Value | None:
        """The value for a token, or None; guarded."""
        if self._pending:
            resolve_stores(s, self)
        if self.counted:
            guard_keys(s, self)
        if self._items is not None:
            pair = self._items.get(token)
            return pair[1] if pair is not None else None
        found = self._found.get(token)
        if found is None:
            found = self._found[token] = self._look_up(s, token)
        return None if found is ABSENT else found

    def _look_up(self, s: CaptureState, token: Token) -> Value:
        if not self._found:
            s.guard_type(self)
            refuse_other_mapping(self)
        if self.source is not None and not is_constant(token):
            self.items(s)
            pair = self._items.get(token) if self._items else None
            return pair[1] if pair else ABSENT
        item = dict_get(self.original, token)
        source = ItemSource(self.source, token) if self.source is not None else None
        if item is MISSING:
            s.guard(source, GuardKind.ABSENT)
            return ABSENT
        return s.wrap(item, source)

    def items(self, s: CaptureState) -> dict[Token, tuple[Value, Value]]:
        """All items; guards all keys."""
        resolve_stores(s, self)
        if self._items is None:
            self._items = self._load(s)
        return self._items

    def _load(self, s: CaptureState) -> dict[Token, tuple[Value, Value]]:
        s.guard_type(self)
        refuse_other_mapping(self)
        base = base_of(self.original)
        keys = tuple(base.__iter__(self.original))
        if not all(base.__contains__(self.original, key) for key in keys):
            raise self.unsupported("read", "a key has another hash than when it was stored")
        constant = not self.counted and all(is_constant(key) for key in keys)
        if constant:
            s.guard(self.source, GuardKind.DICT_KEYS, keys)
        else:
            s.guard(self.source, GuardKind.LENGTH, len(keys))
        items: dict[Token, tuple[Value, Value]] = {}
        for index, real in enumerate(keys):
            source: Source | None
            if constant or self.source is None:
                key = s.wrap(real, None)
                source = ItemSource(self.source, real) if self.source is not None else None
            else:
                key = s.wrap(real, KeysSource(self.source, index))
                source = ValuesSource(self.source, index)
            is_hashed_by_program(self, real)
            token = real if self.counted else key.key(s)
            value = self._found.get(token)
            items[token] = (key, value if value is not None else s.wrap(base.__getitem__(self.original, real), source))
        for token, key in self._stored.items():
            items.setdefault(token, (key, self._found[token]))
        return items

    def change(self, s: CaptureState) -> dict[Token, tuple[Value, Value]]:
        if self.cls is types.MappingProxyType:
            raise self.unsupported("change", "it is a proxy")
        if self.original is not None and is_namespace(self.original):
            raise self.unsupported("change", "it is the dict of a module")
        if self.counted:
            guard_keys(s, self)
        items = self.items(s)
        note_change(s, self)
        return items

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        found = self.find(s, token_in(s, self, key))
        if found is not None:
            return found
        if self.factory is not None:
            made = self.factory.call(s, [], {})
            self.set_item(s, key, made)
            return made
        missing = s.classes.lookup(self.cls, "__missing__")
        if missing is not None and self.cls is not defaultdict:
            return s.call_special(self, "__missing__", [key], {})
        raise s.error(KeyError, key)

    def set_item(self, s: CaptureState, key: Value, value: Value, site: CallSite = NOT_RESUMABLE) -> None:
        if self.cls is types.MappingProxyType:
            raise s.error(TypeError, "'mappingproxy' object does not support item assignment")
        will_change(s, self)  # which may read all items
        plain = self._items is None and self.source is not None and not self.counted
        if plain and key.python_type() in (int, str) and not is_namespace(self.original):
            s.guard_type(self)
            s.guard_type(key)
            note_change(s, self)
            self._pending.append((key, value))
            return
        token = token_in(s, self, key)
        items = self.change(s)
        known = items.get(token)
        items[token] = (known[0] if known else key, value)

    def del_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> None:
        if self.cls is types.MappingProxyType:
            raise s.error(TypeError, "'mappingproxy' object does not support item deletion")
        token = token_in(s, self, key)
        if self.find(s, token) is None:
            raise s.error(KeyError, key)
        del self.change(s)[token]

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        made = self.cls is OrderedDict and self.original is None and self.source is None
        if not made or value is None or s.classes.lookup(self.cls, name) is not None:
            super().set_attr(s, name, value, site)
            return
        s.counters.change()
        will_change(s, self, name)
        self.attrs[name] = value

    def length(self, s: CaptureState) -> int:
        resolve_stores(s, self)
        if self._items is None and self.original is not None and not self._stored:
            s.guard_type(self)
            refuse_other_mapping(self)
            size: int = base_of(self.original).__len__(self.original)
            s.guard(self.source, GuardKind.LENGTH, size)
            return size
        return len(self.items(s))

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return dict_iterator(s, self, "keys")

    def torch_arg(self, s: CaptureState) -> object:
        return {key.torch_arg(s): value.torch_arg(s) for key, value in self.items(s).values()}

    def constant(self, s: CaptureState) -> Any:
        plain = {key.constant(s): value.constant(s) for key, value in self.items(s).values()}
        if issubclass(self.cls, defaultdict):
            return defaultdict(self.factory.constant(s) if self.factory is not None else None, plain)
        cls: Callable[..., object] = self.cls
        return plain if self.cls is dict else cls(plain)

    def key(self, s: CaptureState) -> Token:
        raise s.error(TypeError, "unhashable type: 'dict'")

    def emit(self, g: Codegen) -> None:
        if self._items:
            refuse_loud_keys(g.state, list(self._items))
        if self._items is not None and not isinstance(self._items, dict):
            self._items.emit(g)  # the dict of an instance
            return
        if self.cls is defaultdict and self.factory is not None:
            g.make(None, defaultdict, self.factory)
        elif self.cls is dict:
            g.body.op("BUILD_MAP", 0)
        elif self.behind is not None:
            g.make(self, self.cls, self.behind)
            return
        elif self.cls is types.MappingProxyType:
            super().emit(g)
        else:
            g.make(None, g.state.classes.written(self.cls))
        g.remember(self)
        self.emit_fill(g)
        for name, attr in self.attrs.items():
            emit_attribute(g, self.cls, name, attr)

    def emit_fill(self, g: Codegen) -> None:
        """Fill the dict on the stack."""
        for key, value in self.items(g.state).values():
            g.emit(value)
            g.body.op("COPY", 2)
            g.emit(key)
            g.body.op("STORE_SUBSCR")

    def emit_contents(self, g: Codegen) -> None:
        base = OrderedDict if issubclass(self.cls, OrderedDict) else dict
        if self._items is not None:
            emit_refill(g, self, Dict(self._items), base)
            return
        found = [(token, key, self._found[token]) for token, key in self._stored.items()]
        resolved = [(key, value) for token, key, value in found if not held(self, token, value)]
        for key, value in (*resolved, *self._pending):
            g.run(vars(base)["__setitem__"], self, key, value)


def held(mapping: Dict, token: Token, value: Value) -> bool:
    """Whether the value is the item itself, so that a store of it changes nothing."""
    return mapping.source is not None and value.source == ItemSource(mapping.source, token)


def is_namespace(dictionary: Mapping[Token, object]) -> bool:
    """Whether it is the dict of a module, which functions read as their globals."""
    module = sys.modules.get(str(dictionary.get("__name__")))
    return module is not None and vars(module) is dictionary


def emit_refill(g: Codegen, container: Value, fresh: Value, base: type) -> None:
    """`container.clear(); container.update(fresh)` by the methods of `base`, which a subclass may override.

    `fresh` is built first, as it may read the container.
    """
    g.emit(fresh)
    g.body.op("POP_TOP")
    g.run(vars(base)["clear"], container)
    g.run(vars(base)["update"], container, fresh)


def resolve_stores(s: CaptureState, mapping: Dict) -> None:
    """Guard the keys of stores, now that an item is read."""
    pending, mapping._pending = mapping._pending, []
    for key, value in pending:
        token = key.key(s)
        mapping._found[token] = value
        mapping._stored.setdefault(token, key)


def has_key(s: CaptureState, mapping: Dict, key: Value) -> bool:
    """`key in mapping`."""
    if mapping.counted and (mapping.length(s) == 0 or shares_key(s, mapping, key)):
        return mapping.length(s) != 0
    return found_at(s, mapping, key) is not None


def found_at(s: CaptureState, mapping: Dict, key: Value) -> Value | None:
    """The item at `key`. An input of the region that is none of a few numbers is guarded to differ from them."""
    if key.is_torch and key.python_type() is int and not mapping.counted:
        tokens = list(mapping.items(s))
        numbers = [token for token in tokens if isinstance(token, int | float)]
        constant = all(map(is_constant, tokens)) and len(numbers) <= MOST_COMPARED
        if constant and not any(s.model.equal(s, key, s.const(number)) for number in numbers):
            return None
    return mapping.find(s, token_in(s, mapping, key))


def token_in(s: CaptureState, mapping: Dict, key: Value) -> Token:
    """The token of a key. A number of a new hook, which is an input of the region, differs from the keys there are."""
    if not key.is_torch or key.python_type() is not int or not has_counted_keys(mapping.source):
        return key.key(s)
    guard_keys(s, mapping)
    items = mapping.items(s)
    if len(items) > MOST_COMPARED:
        return key.key(s)
    equal = (token for token, (known, _) in items.items() if s.model.equal(s, key, known))
    return next(equal, key)


MOST_COMPARED = 32
"""The most keys with which a number is compared."""


def shares_key(s: CaptureState, mapping: Dict, key: Value) -> bool:
    """Whether a key of another dict is, as an object, one of this dict's; guarded by its position in both dicts."""
    number, path = key.real(), key.source
    if mapping.source is None or type(path) is not KeysSource:
        return False
    for position, known in enumerate(mapping.items(s)):
        if known is number:
            here = KeysSource(mapping.source, position)
            s.guard(path, GuardKind.TENSOR_ALIASES, AliasExpectation((path, here), (0, 0), "object"))
            return True
    return False


def guard_keys(s: CaptureState, mapping: Dict) -> None:
    """Guard the keys of hooks, at which the program looks."""
    mapping.counted = False
    if mapping.source is not None:
        s.guard(mapping.source, GuardKind.DICT_KEYS, tuple(mapping.original))


def has_counted_keys(source: Source | None) -> bool:
    """Whether it is the path of hooks, which `torch.utils.hooks.RemovableHandle` numbers."""
    if not isinstance(source, AttrSource | DictAttrSource | GlobalSource | ModuleGlobalSource):
        return False
    return source.name.removeprefix("_global") in COUNTED


COUNTED = frozenset(
    {
        *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks"),
        *("_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks"),
        "_post_accumulate_grad_hooks",
    }
)
"""Dicts of hooks of a module or a tensor, or with the prefix `_global` of all modules."""
ABSENT = Constant("<absent>")
"""Marks a key that is known to be absent."""


def dict_iterator(s: CaptureState, mapping: Dict, what: str, backwards: bool = False) -> Value:
    """An iterator over the `keys`, `values` or `items` of a dict."""
    items = mapping.items(s)
    kind = "ordered" if issubclass(mapping.cls, OrderedDict) else "dict"
    pick: dict[str, Callable[[Token], Value]] = {
        "keys": lambda token: items[token][0],
        "values": lambda token: items[token][1],
        "items": lambda token: Tuple(list(items[token])),
    }
    keys = {token: key for token, (key, _) in items.items()}
    if backwards:
        keys, kind = dict(reversed(keys.items())), f"reversed {kind}"
    return KeyIterator(mapping, items, keys, kind, what, pick[what])


def may_hold(value: Dict, token: Token) -> bool:
    """Whether the key may be among the items that are loaded or were stored; without a guard."""
    return bool(value._pending) or token in (value._stored if value._items is None else value._items)


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


def refuse_other_mapping(value: Dict) -> None:
    if value.cls is types.MappingProxyType and not isinstance(gc.get_referents(value.original)[0], dict):
        raise value.unsupported("read", "it calls the methods of a mapping of the program")


def base_of(real: Mapping[Token, object]) -> Any:
    """The class whose methods read the items, whatever a subclass overrides."""
    return next((base for base in (OrderedDict, dict) if isinstance(real, base)), type(real))


def dict_get(real: Mapping[Token, object], token: Token) -> object:
    """Look up without calling `__missing__` or a subclass's `get`."""
    if isinstance(real, dict):
        return dict.get(real, token, MISSING)
    return real.get(token, MISSING)


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
        return items if table is self.original else {token: items[token] for token in table}

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
        made = Set(chosen(s, table, [self, *others]), set if issubclass(self.cls, set) else frozenset)
        made._table, made.origins = table, origins_of([self, *others])
        return made

    def as_set(self, s: CaptureState) -> Set:
        """`set(self)`."""
        made = Set(dict(self.items(s)))
        made._table, made.origins = set(self.table(s)), self.origins
        return made

    def combine_in_place(self, s: CaptureState, operation: str, others: Args) -> None:
        """`update`, `intersection_update`, `difference_update` or `symmetric_difference_update`."""
        others, own = iterated(s, others), self.own_table(s)
        table = own if isinstance(own, set) else set(self.items(s))
        getattr(table, operation)(*[real_items(s, other) for other in others])
        kept = chosen(s, table, [self, *others])
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

    def constant(self, s: CaptureState) -> Any:
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
    g.make(None, function, *target, Tuple([items[token] for token in order]), slots(table))
    return True


def iterated(s: CaptureState, values: Args) -> list[Value]:
    """The values, with lists in place of iterators, which can be read once."""
    kept = (Set, Dict, Constant)
    return [value if isinstance(value, kept) else List(all_items(s, value)) for value in values]


def tokens_of(s: CaptureState, value: Value) -> dict[Token, Value]:
    """The items of an iterable by their tokens; of a set in any order."""
    return value.items(s) if isinstance(value, Set) else {item.key(s): item for item in all_items(s, value)}


def real_items(s: CaptureState, value: Value) -> Iterable[Token]:
    """The tokens in a real object that the methods of sets treat as they treat the program's."""
    if isinstance(value, Set):
        return value.table(s)
    if isinstance(value, Constant) and isinstance(value.value, frozenset):
        return value.value
    return tokens_of(s, value) if isinstance(value, Dict) else list(tokens_of(s, value))


def origins_of(values: Args) -> tuple[Set, ...]:
    return tuple({id(found): found for value in values if isinstance(value, Set) for found in value.origins}.values())


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


@final
class DictView(Value):
    """`keys()`, `values()` or `items()` of a dict; reflects later changes."""

    __slots__ = ("mapping", "what")

    def __init__(self, mapping: Dict, what: str) -> None:
        self.mapping = mapping
        self.what = what

    def python_type(self) -> type:
        return type(getattr({}, self.what)())

    def values(self, s: CaptureState, pair: Callable[[list[Value]], Value]) -> list[Value]:
        items = self.mapping.items(s).values()
        if self.what == "keys":
            return [key for key, _ in items]
        if self.what == "values":
            return [value for _, value in items]
        return [pair([key, value]) for key, value in items]

    def length(self, s: CaptureState) -> int:
        return self.mapping.length(s)

    def truth(self, s: CaptureState) -> bool:
        return self.length(s) != 0

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return dict_iterator(s, self.mapping, self.what)

    def emit(self, g: Codegen) -> None:
        g.emit(self.mapping)
        g.body.attr(self.what).call(0)
        g.remember(self)


def fresh(s: CaptureState, real: Any) -> Value:
    """The value of a new container made by a pure function, which may be changed."""
    kind = type(real)
    if kind is list:
        return List([fresh(s, item) for item in real])
    if kind is tuple:
        return Tuple([fresh(s, item) for item in real])
    if kind is dict:
        pairs = [(s.wrap(key, None), fresh(s, item)) for key, item in real.items()]
        return Dict({key.key(s): (key, value) for key, value in pairs})
    return s.wrap(real, None)


@wraps(dict, OrderedDict, types.MappingProxyType, defaultdict)
def wrap_dict(s: CaptureState, real: Mapping[Token, object], source: Source | None) -> Value:
    def make() -> Value:
        value = Dict(None, type(real), source, real)
        if type(real) is defaultdict and real.default_factory is not None:
            path = AttrSource(source, "default_factory") if source is not None else None
            value.factory = s.wrap(real.default_factory, path)
        return value

    owner = s.identities.owners.get(id(real))
    if owner is not None:
        if source is not None and owner.source is not None:
            paths = AttrSource(owner.source, "__dict__"), source
            s.guard(source, GuardKind.TENSOR_ALIASES, AliasExpectation(paths, (0, 0), "object"))
        return owner.get_attr(s, "__dict__")
    return s.identities.same_object(real, source, make)


@wraps(set, frozenset)
def wrap_set(s: CaptureState, real: set[Token] | frozenset[Token], source: Source | None) -> Value:
    return s.identities.same_object(real, source, lambda: Set(None, type(real), source, real))


READ_BY_NAME = ("__iter__", "__len__", "__contains__", "__eq__", "__sizeof__", *COMBINED)
"""Methods of sets from outside that are called while tracing."""
Native = Dict | Set | Sequence
"""The container inside an object whose class derives from a container."""


def native_of(s: CaptureState, real: Any, base: type, source: Source | None) -> Native:
    """The container inside an object from outside."""
    if source is not None and any(
        (found := s.classes.lookup(type(real), name)) is not None and type(found[1]) is types.FunctionType
        for name in ("__getitem__", "__iter__", "values")
    ):
        s.part(PlainReads).bases[id(source)] = source, base
    if issubclass(base, dict):
        return Dict(None, type(real), source, real)
    if base in (list, tuple):
        items: Sequence = List(None, source, real) if base is list else Tuple(None, tuple, source, real)
        items.cls = type(real)
        return items
    plain = all((found := s.classes.lookup(type(real), name)) is None or found[0] is base for name in READ_BY_NAME)
    made = Set(None, type(real), source, real if plain else plain_set(real))
    if made.original is None:
        raise made.unsupported("read", "the order of its items depends on what it held before")
    return made
