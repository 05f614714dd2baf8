"""Dicts that change while they are iterated over."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from tests.faults.outcome import assert_like_eager, outcome

X = torch.arange(3.0)


@kiln.disable
def broken() -> None:
    """Ends a region."""


def replaced_value(x: Any) -> Any:
    d = {"a": 1, "b": 2, "c": 3}
    seen = []
    for v in d.values():
        d["c"] = 10
        seen.append(v)
    return x + 1, seen


def replaced_backwards(x: Any) -> Any:
    d = {"a": 1, "b": 2, "c": 3}
    seen = []
    for v in reversed(d.values()):
        d["a"] = 10
        broken()
        seen.append(v)
    return x + 1, seen, list(reversed(d))


def replaced_item(x: Any) -> Any:
    d = {"a": x, "b": x + 1}
    seen = []
    for key, v in d.items():
        d["b"] = x * 7
        broken()
        seen.append((key, v))
    return seen


def replaced_after_break(x: Any) -> Any:
    d = {"a": x, "b": x + 1, "c": x + 2}
    it = iter(d.values())
    first = next(it)
    broken()
    d["c"] = x * 9
    return first, list(it)


def argument(x: Any, d: dict[str, int]) -> Any:
    seen = []
    for key, v in d.items():
        d[key] = v + 1
        d["b"] = 5
        seen.append(v)
    return x + 1, seen, d


def error_of(change: Callable[[Any], None], breaks: bool, make: Callable[..., Any] = dict) -> Callable[[Any], Any]:
    """What is seen before and after a change, and the error."""

    def program(x: Any) -> Any:
        d = make(a=1, b=2, c=3)
        it = iter(d)
        seen = [next(it)]
        if breaks:
            broken()
        change(d)
        try:
            for key in it:
                seen.append(key)
        except RuntimeError as error:
            return x + 1, seen, str(error)
        return x - 1, seen, ""

    return program


def other_key(d: Any) -> None:
    del d["a"]
    d["q"] = 9


def later_key(d: Any) -> None:
    del d["c"]
    d["q"] = 9


def again(d: Any) -> None:
    del d["c"]
    d["c"] = 9


def fewer(d: Any) -> None:
    del d["a"]


def same(d: Any) -> None:
    d["c"] = 9


@pytest.mark.parametrize("program", [replaced_value, replaced_backwards, replaced_item, replaced_after_break])
def test_values_are_read_when_reached(program: Callable[[Any], Any]) -> None:
    assert_like_eager(kiln.compile(program, backend="eager"), program, X)


def test_argument() -> None:
    for made in ({"a": 1, "b": 2}, OrderedDict(a=1, b=2)):
        assert_like_eager(kiln.compile(argument, backend="eager"), argument, X, made)


CHANGES = [(change, dict) for change in (other_key, later_key, again, fewer, same)]
CHANGES += [(change, OrderedDict) for change in (other_key, later_key, fewer, same)]


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize(("change", "make"), CHANGES)
def test_changed_keys(change: Callable[[Any], None], make: Callable[..., Any], breaks: bool) -> None:
    program = error_of(change, breaks, make)
    assert_like_eager(kiln.compile(program, backend="eager"), program, X)


def test_the_error_of_a_changed_key_is_raised() -> None:
    program = error_of(other_key, True)
    result: Any = outcome(kiln.compile(program, backend="eager"), (X,))
    assert result[0][1:] == (["a", "b", "c"], "dictionary keys changed during iteration")
