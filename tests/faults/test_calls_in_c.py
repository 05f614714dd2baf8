"""What random calls of functions written in C found (`python -m tests.sweeps calls`), and operators on all pairs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

import kiln
from tests.faults.outcome import assert_like_eager
from tests.sweeps.calls import OPERATORS, VALUES, Program, check

FOUND = (
    ("str(a)", "OrderedDict({1: 1})"),
    ("f'{a} {[a]}'", "defaultdict(int, {1: 1})"),
    ("'%s' % (a,)", "OrderedDict({1: 1})"),
    ("str({8, 16, 9, 1}), str({'a', 'b', 'c'} | {'d'})", "1"),
    ("a.__reversed__()", "range(1, 9, 2)"),
    ("iter(a) is a", "iter([1, 2])"),
    ("(a, zip(a))", "iter([1, 2])"),
    ("(a, a)", "iter((1, 2))"),
    ("frozenset(a) is a, a.copy() is a, copy.copy(a) is a, copy.deepcopy(a) is a", "frozenset([1])"),
    ("a | {1: 1}.keys()", "frozenset([1])"),
    ("a - {2: 1}.keys()", "frozenset([1])"),
    ("a == [3, 1, 2], [3, 1, 2] == a, list.__eq__([3], a)", "deque([3, 1, 2])"),
    ("a == {1: 1}, {1: 1} == a, a == [1], a == E()", "types.MappingProxyType({1: 1})"),
    ("a | 1", "int"),
    ("a[slice(0, 2)]", "types.MappingProxyType({1: 1})"),
    ("a.pop(1 << 70)", "[1]"),
    ("a.insert(1 << 70, 1)", "L([1])"),
    ("a[1 << 70]", "(1, 2)"),
    ("a[0:2.0]", "[1, 2]"),
    ("a.index(1, None)", "[1, 2]"),
    ("a.decode('')", "b'a'"),
    ("int(a, It())", "fractions.Fraction(1, 3)"),
    ("a.most_common(2.0)", "Counter('aab')"),
    ("a.__contains__(1, 2)", "frozenset([1])"),
    ("a.copy(1)", "defaultdict(int, {1: 1})"),
    ("type(a).__len__(a, 1)", "range(3)"),
    ("a.close(1)", "(i for i in [1])"),
    ("a.values(1)", "types.MappingProxyType({1: 1})"),
    ("a.fromfile(0)", "array.array('i', [1])"),
    ("[].append < a", "1"),
    ("a.__ge__([1])", "None"),
    ("type(a).__eq__(a, None)", "None"),
    ("isinstance(2, a)", "list[int]"),
    ("isinstance(2, {1: 9})", "1"),
    ("isinstance(2, slice(0, a))", "1"),
    ("issubclass(int, {a, 2})", "1"),
    ("isinstance(2, a | int)", "list[int]"),
    ("isinstance([], a), isinstance([], a | int)", "typing.List"),
    ("isinstance((), a), issubclass(tuple, a), issubclass(int, a)", "typing.Sequence"),
    ("isinstance(1, a)", "typing.Optional[int]"),
    ("isinstance([], a)", "typing.List[int]"),
    ("issubclass(int, a)", "list[int]"),
    ("a[OSError]", "Exception"),
)


@pytest.mark.parametrize(("call", "value"), FOUND)
def test_like_python(call: str, value: str) -> None:
    for source, arguments in (
        (f"def f():\n    a = {value}\n    r = {call}\n    return r, a\n", ()),
        (f"def f(a):\n    r = {call}\n    return r, a\n", (value,)),
    ):
        assert check(Program(source, arguments)) is None


def test_operators_on_pairs() -> None:
    """A sample of all pairs; the whole runs as the sweep `calls`."""
    pairs = list(itertools.product(VALUES, VALUES))
    for number, operator in enumerate(OPERATORS[:17]):
        for left, right in pairs[number * 7 :: 173]:
            source = f"def f():\n    a = {left}\n    b = {right}\n    r = {operator}\n    return r\n"
            assert check(Program(source, ())) is None


class Item:
    """Compared by value, so that a copy is seen."""

    def __init__(self, value: int) -> None:
        self.value = value


def copies_of_items() -> list[bool]:
    import copy

    item = Item(1)
    (copied,) = copy.deepcopy({item})
    return [copied is item, copied.value == 1]


def identities(x: Any) -> list[bool]:
    pair, method, view, cut = (x, [1]), [].append, {1: 2}.items(), slice(x, 2)
    held = [pair, pair], [method, method], [view, view], [cut, cut]
    time.sleep(0)
    return [a is b for a, b in held]


@pytest.mark.parametrize("program", [copies_of_items, lambda: identities(1)])
def test_objects(program: Callable[..., Any]) -> None:
    assert_like_eager(kiln.compile(program, backend="eager", options={"cache": False}), program)
