"""The two kinds of table that this folder keeps at module level.

    ADD = Memo("add", add_terms)        ADD[s0, 3]  ->  the sum, computed once
    POLYNOMIALS = InternTable("poly")   one object per value, kept alive by its users only

A full memo is cleared. That is unobservable: equal expressions are one object through the intern tables, which hold
weak references.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MEMO_LIMIT = 1 << 16  # entries; a full table begins anew


class Table(Protocol):
    def __len__(self) -> int: ...


TABLES: dict[str, Table] = {}
"""Every table of this folder by its name."""


class Memo(dict[K, V], Generic[K, V]):
    """Results of a pure function of the key's items; `table[a, b]` is `compute(a, b)`, computed once.

    `NotImplemented` (an operand of a foreign type) is returned and not kept.
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
    """One object per key while anything refers to it; thread-safe."""

    __slots__ = ("_lock", "_objects")

    def __init__(self, name: str) -> None:
        self._objects: WeakValueDictionary[K, V] = WeakValueDictionary()
        # Reentrant: garbage collection inside may run code that builds an expression.
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
