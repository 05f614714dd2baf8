"""`d[key] = value` of a dict from outside: other items are not looked at, and a key only if an item is read later."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

X = torch.ones(2)
Items = dict[Any, Any]


def stores_and_reads(d: Items, x: Tensor) -> object:
    d["x"] = x * 2
    return d["x"] + 1


def lists_keys(d: Items, x: Tensor) -> object:
    d["x"] = x * 2
    d["y"] = x
    return len(d), list(d), d.get("z"), "z" in d


def deletes(d: Items, x: Tensor) -> object:
    d["x"] = x * 2
    del d["x"]
    d["x"] = 3
    return x


def sums(d: Items, x: Tensor) -> object:
    d["q"] = x
    d["p"] = x + 1
    d["q"] = x + 2
    return sum(d.values())


def pops(d: Items, x: Tensor) -> object:
    y = d.get("x", 0)
    d["x"] = x
    d["w"] = y
    return d.setdefault("x", 3), d.pop("w"), x + 1


def around_a_break(d: Items, x: Tensor) -> object:
    d["x"] = x
    time.sleep(0)
    d["y"] = x + 1
    return d["x"]


def iterates(d: Items, x: Tensor) -> object:
    keys = iter(d)
    d["x"] = 1
    return x, list(keys)


def equal_keys(d: Items, x: Tensor) -> object:
    if len(d) > 2:
        x = x + 1
    d[1] = x
    d[True] = 3
    d[1.0] = 4
    return x


def changes_an_item(d: Items, x: Tensor) -> object:
    d["n"] = 5
    for name in "ab":
        d[name] = x
    d["n"] += 1
    return x * d["n"]


class Doubles(dict[Any, Any]):
    def __setitem__(self, key: object, value: Any) -> None:
        super().__setitem__(key, value * 2)


def dicts() -> list[Items]:
    plain: list[Items] = [{}, {"x": X}, {"y": X, "x": X, "z": X}]
    return [*plain, collections.OrderedDict(y=X), collections.defaultdict(lambda: X, y=X), Doubles(y=X)]


def outcome(function: Callable[[Items, Tensor], object], d: Items) -> object:
    try:
        result = function(d, X)
    except RuntimeError as error:
        result = str(error)
    return repr(result), type(d), [(repr(key), repr(value)) for key, value in d.items()]


PROGRAMS = [
    stores_and_reads, lists_keys, deletes, sums, pops, around_a_break, iterates, equal_keys, changes_an_item,
]  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS)
def test_stores(function: Callable[[Items, Tensor], object]) -> None:
    compiled = kiln.compile(function, backend="eager", options={"cache": False, "variants": 16})
    for mine, theirs in zip(dicts(), dicts(), strict=True):
        for _ in range(2):
            assert outcome(compiled, mine) == outcome(function, theirs)


def test_one_variant_for_all_keys() -> None:
    def store(d: Items, key: object, x: Tensor) -> Tensor:
        d[key] = x * 2
        return x + 1

    compiled = kiln.compile(store, backend="eager", options={"cache": False})
    d: Items = {}
    for key in ("a", "b", "c", "a"):
        compiled(d, key, X)
    assert list(d) == ["a", "b", "c"] and compiled.report().compiles == 1
    compiled(d, True, X)
    assert True in d


def test_two_paths_to_one_dict() -> None:
    def store(d: Items, e: Items, x: Tensor) -> Tensor:
        d["x"] = 1
        e["x"] = 2
        d["x"] = 3
        e["x"] = 4
        return x + 1

    compiled = kiln.compile(store, backend="eager", options={"cache": False})
    compiled({}, {}, X)
    d: Items = {}
    compiled(d, d, X)
    assert d == {"x": 4}


def test_a_store_of_what_was_there_is_made_when_something_else_is_there(lab: Any) -> None:
    class State:
        def __init__(self) -> None:
            self.table: dict[str, Any] = {"count": 1, "mode": None}

    def program(x: Tensor, state: State, number: int) -> Tensor:
        state.table["count"] = number % 9
        state.table["mode"] = None
        return x * state.table["count"] if state.table["mode"] is None else x

    eager, own = State(), State()
    compiled = lab.compile(program)
    for number in (1, 6, 7, 1, 3):
        expected = program(torch.ones(2), eager, number)
        torch.testing.assert_close(compiled(torch.ones(2), own, number), expected)
        assert own.table == eager.table
        own.table["mode"] = eager.table["mode"] = "changed outside"
