"""Calls with `*items` and `**mappings`: the errors of those that CPython refuses, with its messages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.outcome import assert_like_python


def callee(a: Any, b: int = 1, *c: Any, **d: Any) -> Any:
    return a, b, c, d


class Mapped:
    def keys(self) -> list[str]:
        return ["a", "z"]

    def __getitem__(self, name: str) -> str:
        return name * 2


A: dict[Any, Any] = {"a": 1}
AGAIN: dict[Any, Any] = {"a": 2}
NUMBERED: dict[Any, Any] = {1: 2}
NONE: dict[Any, Any] = {}
NUMBER: Any = 5

CALLS: dict[str, Callable[[], Any]] = {
    "twice by mappings": lambda: callee(**A, **AGAIN),
    "by name and by a mapping": lambda: callee(a=1, **AGAIN),
    "no mapping": lambda: callee(**NUMBER),
    "no mapping, a builtin": lambda: max(1, **NUMBER),
    "nothing to iterate over": lambda: callee(*NUMBER),
    "nothing to iterate over, behind others": lambda: callee(1, *NUMBER),
    "a key that is no string": lambda: callee(1, **NUMBERED),
    "two keys that are no strings": lambda: callee(1, **NUMBERED, **NUMBERED),
    "an object with keys": lambda: callee(**Mapped()),
    "mappings in order": lambda: callee(*"a", *(2, 3), k=4, **OrderedDict(z=1), **NONE),
    "a dict of mappings": lambda: {**A, **Mapped(), **AGAIN},
    "a dict of no mapping": lambda: {**NUMBER},
    "a list of no iterable": lambda: [*NUMBER],
}


@pytest.mark.parametrize("name", CALLS)
def test_spread_arguments(name: str) -> None:
    call = CALLS[name]

    def program() -> Any:
        try:
            return call()
        except TypeError as error:
            return str(error)

    assert_like_python(program)
