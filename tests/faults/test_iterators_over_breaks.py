"""Iterators over sets that outlive a graph break or the frame: of Python's own type, at the same item."""

from __future__ import annotations

import time
from typing import Any

import pytest

import kiln


@pytest.mark.parametrize("make", [set, frozenset])
def test_sets_from_outside(make: Any) -> None:
    def returned(items: Any, skip: int) -> Any:
        found = iter(items)
        for _ in range(skip):
            next(found)
        return found

    def broken(items: Any, skip: int) -> Any:
        found = returned(items, skip)
        time.sleep(0)
        return type(found).__name__, [*found], [*found]

    items = make([5, 3, 16, 8])
    for skip in (0, 3):
        run = kiln.compile(broken, backend="eager", options={"cache": False})
        assert [run(items, skip) for _ in range(2)] == [broken(items, skip)] * 2
        ours, theirs = kiln.compile(returned, backend="eager")(items, skip), returned(items, skip)
        assert type(ours) is type(theirs) and [*ours] == [*theirs]
