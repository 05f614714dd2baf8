"""Dicts, and iteration over them.

cfg["size"]       a dict from outside: only this item is wrapped; its path implies that it exists
"x" in cfg        present: the path; absent: a guard that the key is absent
cfg["y"] = 3      an effect that stores this item, whatever else there is
for k in cfg      all keys, in order, are guarded

The keys of a module's hooks come from a counter, so they differ between equal layers: such a dict is guarded by the
number of its items, its values by their position, and its keys only where the program looks at them.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, final

from kiln.capture.interpreter.core import (
    MISSING,
    NOT_RESUMABLE,
    CallSite,
    CaptureState,
    Codegen,
    Token,
    Value,
    refuse_varying,
    will_change,
    wraps,
)
from kiln.capture.interpreter.effects import Container, emit_attribute, note_change
from kiln.capture.interpreter.hashing import dict_key
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.hashed_key import (
    is_hashed_by_program,
    refuse_loud_keys,
)
from kiln.capture.interpreter.variables.key_iterator import KeyIterator
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import AliasExpectation, GuardKind
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
        refuse_varying(s, self, self.source)
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
        refuse_varying(s, self, self.source)
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
            refuse_varying(s, self, self.source)
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
        token = dict_key(s, key)
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
        return dict_key(s, key)
    guard_keys(s, mapping)
    items = mapping.items(s)
    if len(items) > MOST_COMPARED:
        return dict_key(s, key)
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


def claim_dict(s: CaptureState, owner: Value, content: object) -> None:
    """Let `owner` stand for its `__dict__`. Breaks the graph if that is a dict of the program, too."""
    if id(content) in s.identities.objects:
        raise owner.unsupported("access by attribute", "its `__dict__` is also reached on a path of its own")
    s.identities.owners.setdefault(id(content), owner)


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
