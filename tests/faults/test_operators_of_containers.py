"""`+`, `*` and their in-place forms between containers, their subclasses and other objects, as in Python."""

from __future__ import annotations

import collections
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kiln


class Reflected:
    def __rmul__(self, other: object) -> str:
        return "reflected"

    def __radd__(self, other: object) -> str:
        return "reflected"


class Index:
    def __index__(self) -> int:
        return 2


class Listed(list):  # type: ignore[type-arg]
    pass


class Tabled(dict):  # type: ignore[type-arg]
    pass


class Unique(set):  # type: ignore[type-arg]
    pass


class Ordered(collections.OrderedDict):  # type: ignore[type-arg]
    pass


SCOPE = {name: value for name, value in globals().items() if isinstance(value, type) or name == "collections"}
VALUES = (
    *("[1]", "(1,)", "'a'", "2", "2.5", "None", "{}", "{1}", "range(2)", "Reflected()", "Index()", "Listed([1])"),
    *("bytearray(b'a')", "x.shape", "(x,)", "[x]"),
)


@pytest.mark.parametrize("operator", ["*", "+", "*=", "+="])
def test_pairs(operator: str) -> None:
    pairs = list(itertools.product(VALUES, VALUES))
    for first in range(0, len(pairs), 40):
        lines = ["def program(x):", " found = []"]
        for left, right in pairs[first : first + 40]:
            change = f"v {operator} {right}" if operator.endswith("=") else f"v = v {operator} {right}"
            lines += [" try:", f"  v = {left}; {change}; found.append((type(v).__name__, len(v)))"]
            lines += [" except Exception as error: found.append(repr(error))"]
        scope: dict[str, Any] = dict(SCOPE)
        exec("\n".join([*lines, " return found, x + 1"]), scope)
        expected = scope["program"](torch.ones(1))[0]
        found = kiln.compile(scope["program"], backend="eager", options={"cache": False})(torch.ones(1))[0]
        assert dict(zip(pairs[first:], found, strict=False)) == dict(zip(pairs[first:], expected, strict=False))


CHANGES = {
    "Listed([1])": (
        "v += [2]",
        "v *= 2",
        "v = v.__iadd__([2])",
        "v = v[:]",
        "v = v.copy()",
        "v = v + [2]",
        "v = 2 * v",
    ),
    "[1]": ("v += (2,)", "v *= 2", "v = v[:]"),
    "Tabled({1: 1})": ("v |= {2: 2}", "v = v.__ior__({2: 2})", "v = v | {2: 2}", "v = v.copy()"),
    "Ordered({1: 1})": ("v |= {2: 2}", "v = v | {2: 2}", "v = v.copy()"),
    "Unique({1})": ("v |= {2}", "v -= {2}", "v = v.copy()", "v = v.union({2})", "v = v | {2}", "v = {2} - v"),
    "collections.deque([1])": ("v += [2]", "v *= 2", "v = v.copy()"),
}


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize("make", CHANGES)
def test_what_an_operator_returns(make: str) -> None:
    """The same object or a new one, of the container's class or of the built-in one."""
    for change, start in itertools.product(CHANGES[make], (make, "held.v")):
        scope: dict[str, Any] = dict(SCOPE)
        exec(f"def program(x, held):\n v = w = {start}\n {change}\n held.v = v\n return x + 1, v, w", scope)
        results = []
        for function in (scope["program"], kiln.compile(scope["program"], backend="eager", options={"cache": False})):
            value = eval(make, SCOPE)
            held = SimpleNamespace(v=value)
            _, v, w = function(torch.ones(1), held)
            results.append((type(v), list(v), v is w, held.v is v, w is value, list(w), list(value)))
        assert results[1] == results[0], (change, start)


PAIRS_OF_DICTS = (
    ("dict(a=x, b=1)", "dict(a=2, c=1)"), ("dict(b=1, a=x)", "dict(a=2, c=1)"), ("dict(a=x)", "dict(a=2, c=1)"),
    ("Ordered(a=1, b=2)", "Ordered(b=2, a=1)"), ("Ordered(a=1, b=2)", "dict(b=2, a=1)"),
    ("Ordered(a=x, b=2)", "Ordered(b=2, a=1)"),
)  # fmt: skip


@pytest.mark.parametrize(("left", "right"), PAIRS_OF_DICTS)
def test_dicts_compare_values_up_to_the_first_missing_key(left: str, right: str) -> None:
    """The truth of a tensor with two elements is an error, where Python asks for it."""
    scope: dict[str, Any] = dict(SCOPE)
    lines = ["def program(x):", f" try: found = {left} == {right}", " except RuntimeError: found = 'raised'"]
    exec("\n".join([*lines, " return found, x + 1"]), scope)
    compiled = kiln.compile(scope["program"], backend="eager", options={"cache": False})
    assert compiled(torch.ones(2))[0] == scope["program"](torch.ones(2))[0]
