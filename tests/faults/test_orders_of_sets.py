"""The order of sets: that of a real set with the same history, also where hashes collide."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln

OPERATIONS = (
    "a = a | b",
    "b = a & c",
    "c = b - a",
    "a = a ^ c",
    "a |= b",
    "a &= b | c",
    "b -= a",
    "c ^= b",
    "a.update(b, items)",
    "b = a.union(items, c)",
    "c = a.intersection(b, items)",
    "b = set(c)",
    "a = set(frozenset(b) | c)",
    "c = a.copy()",
    "a = {8, 16, 9, 1}",
    "a.add(24)",
    "b.discard(8)",
    "c = {*a, *b}",
    "a.difference_update(items)",
    "b.symmetric_difference_update(a)",
    "c = {v for v in b}",
    "b = dict.fromkeys(a).keys() | c",
)


def program(seed: int) -> Callable[..., Any]:
    """Operations on three sets; numbers that are equal modulo 8 collide in a small table."""
    source = random.Random(seed)
    lines = [f"    {source.choice(OPERATIONS)}" for _ in range(6)]
    text = "\n".join(
        [
            "def f(a, items):",
            "    a = a.copy(); b = {8, 16, 3}; c = {0, 8, 24, 11}",
            *lines,
            "    return [*a], [*b], [*c]",
        ]
    )
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    return namespace["f"]


@pytest.mark.parametrize("first", [0, 100])
def test_like_eager(first: int) -> None:
    whole = 0
    for seed in range(first, first + 100):
        source = random.Random(seed)
        a, items = {source.randrange(40) for _ in range(source.randrange(8))}, [source.randrange(40) for _ in range(5)]
        function = program(seed)
        compiled = kiln.compile(function, backend="eager", options={"cache": False})
        for given in (a, {*a, 5, 13}):
            expected = function(given.copy(), items)
            assert compiled(given.copy(), items) == expected, seed
        whole += kiln.explain(function)(given.copy(), items).breaks == []
        kiln.reset()
    assert whole > 90


def popped(s: set[Any]) -> Any:
    s |= {8, 16, 24}
    s -= {3}
    return s.pop(), [*s]


def emptied(s: set[Any]) -> Any:
    s.clear()
    s.update([9, 1, 17])
    first = s.pop()
    rest = []
    while s:
        rest.append(s.pop())
    return first, rest


def displayed(a: set[Any]) -> Any:
    b = {8, 16, 3}
    return {*a, *b}, a | b, a ^ {8}, frozenset(b)


def made_by_a_view(a: set[Any]) -> Any:
    return {1: 2}.items() | dict.fromkeys(a), {1: 2}.items() ^ dict.fromkeys([3, *a])


@pytest.mark.parametrize("function", [popped, emptied, displayed, made_by_a_view])
def test_sets_over_breaks_and_in_results(function: Callable[..., Any]) -> None:
    compiled = kiln.compile(function, backend="eager", options={"cache": False})
    for given in ({1, 3, 33}, {1, 3, 33, 7, 99}, {8, 16, 9, 1}, {3, 0}):
        expected, found = function(given.copy()), compiled(given.copy())
        assert [repr(item) for item in found] == [repr(item) for item in expected]


@pytest.mark.parametrize("sign", ["|", "&", "-", "^"])
def test_keys_of_dicts_combined(sign: str) -> None:
    """The operator of a view adds one key after another; that of a set copies tables."""
    source = f"""def program(x, a, b, c, d):
    return x + 1, [
        list(a.keys() {sign} b.keys()), list(a.keys() {sign} c), list(c {sign} a.keys()), list(d {sign} b.keys()),
        list(a.keys() {sign} d), list(b.keys() {sign} a.keys()), list(c {sign} d), list(d {sign} c),
    ]"""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    compiled, draw = kiln.compile(namespace["program"]), random.Random(0)
    for size in (3, 5, 20, 40):
        numbers = [[draw.randrange(200) for _ in range(size)] for _ in range(4)]
        first, second = (dict.fromkeys(items, 0) for items in numbers[:2])
        arguments = torch.ones(1), first, second, set(numbers[2]), frozenset(numbers[3])
        assert compiled(*arguments)[1] == namespace["program"](*arguments)[1]


def test_methods_of_sets_refuse_views() -> None:
    def program(table: dict[str, int]) -> list[Any]:
        return [frozenset("ab").__ge__(table.keys()), {"a"}.__or__(table.keys()), frozenset("ab") >= table.keys()]  # type: ignore[operator]

    assert kiln.compile(program)({"a": 1}) == program({"a": 1}) == [NotImplemented, NotImplemented, True]


def test_keys_and_sets_of_one_length() -> None:
    """Which of the two is gone through decides the order of what collides."""

    def program(a: dict[int, int], b: dict[int, int], c: set[int], d: frozenset[int]) -> list[list[int]]:
        return [
            list(a.keys() & b.keys()),
            list(a.keys() & c),
            list(c & a.keys()),
            list(a.keys() & d),
            list(d & a.keys()),
        ]

    arguments = ({8: 1, 0: 1}, {0: 1, 8: 1}, {0, 8}, frozenset([0, 8]))
    assert kiln.compile(program)(*arguments) == program(*arguments)


def test_operators_that_change_a_set_or_make_one() -> None:
    def program(table: dict[int, int]) -> list[Any]:
        fixed, plain, other = frozenset([1]), {1}, {1}
        was_fixed, was_plain, was_other = fixed, plain, other
        fixed |= {3}
        plain |= table.keys()
        other |= {3}
        found = [was_fixed, fixed, was_plain is plain, plain, was_other is other, other]
        try:
            found.append({1} < [1])  # type: ignore[operator]
        except TypeError as error:
            found.append(str(error))
        return found

    assert kiln.compile(program)({2: 1}) == program({2: 1})
