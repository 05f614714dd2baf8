"""The two kinds of table that this folder keeps at module level, and the list of them.

    ADD = Memo("add", add_terms)        ADD[s0, 3]  ->  the sum, computed once
    POLYNOMIALS = InternTable("poly")   one object per value, kept alive by its users only

A memo is bounded: it forgets everything when it is full. Forgetting is unobservable, because equal
expressions are one object through the intern tables, which hold weak references.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MEMO_LIMIT = 1 << 16
TABLES: dict[str, Memo[Any, Any] | InternTable[Any, Any]] = {}
"""Every table of this folder by its name: tests empty them, the report counts them."""


class Memo(dict[K, V], Generic[K, V]):
    """Results of a pure function of the key's items; `table[a, b]` is `compute(a, b)`, computed once.

    `NotImplemented` (an operand of a foreign type) is handed on and not kept.
    """

    __slots__ = ("compute",)

    def __init__(self, name: str, compute: Callable[..., V]) -> None:
        super().__init__()
        self.compute = compute
        TABLES[name] = self

    def __missing__(self, key: K) -> V:
        value = self.compute(*key)  # type: ignore[misc]
        if value is not NotImplemented:
            if len(self) >= MEMO_LIMIT:
                self.clear()
            self[key] = value
        return value


class InternTable(Generic[K, V]):
    """One object per key for as long as somebody holds it; safe with many threads."""

    __slots__ = ("_lock", "_objects")

    def __init__(self, name: str) -> None:
        self._objects: WeakValueDictionary[K, V] = WeakValueDictionary()
        # Reentrant: a collection that starts inside may run code that builds an expression.
        self._lock = threading.RLock()
        TABLES[name] = self

    def get_or_make(self, key: K, make: Callable[[K], V]) -> V:
        """The object of `key`, made by `make(key)` when there is none."""
        with self._lock:
            found = self._objects.get(key)
            if found is None:
                found = self._objects[key] = make(key)
            return found

    def __len__(self) -> int:
        return len(self._objects)
