"""Functions under `functools.lru_cache` whose cached results may have been changed.

A region computes what such a function gives for sizes that change, as long as nothing could tell: it is guarded that
no compiled program has changed one of its results, compared it by `is`, or handed it on.
"""

from __future__ import annotations

from weakref import WeakSet

SEEN_RESULTS: WeakSet[object] = WeakSet()


def is_seen(function: object) -> bool:
    return function in SEEN_RESULTS
