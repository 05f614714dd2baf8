"""Whether a value is None or NotImplemented is guarded: another call may bring another one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kiln
from tests.faults.outcome import assert_like_eager

X = torch.arange(3.0)
Program = Callable[[torch.Tensor, Any], Any]


def sent_to_a_new_generator(x: torch.Tensor, value: Any) -> Any:
    def items() -> Generator[Any, Any, None]:
        yield x

    return items().send(value)


class Sends:
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> int:
        return 1

    def send(self, value: Any) -> int:
        return 50


def sent_through_a_delegate(x: torch.Tensor, value: Any) -> Any:
    def items() -> Generator[Any, Any, None]:
        yield from Sends()  # type: ignore[misc]

    outer = items()
    return x + next(outer) + outer.send(value)


def returned_by_a_generator(x: torch.Tensor, value: Any) -> Any:
    def items() -> Generator[Any, Any, Any]:
        yield 1
        return value

    made = items()
    next(made)
    try:
        next(made)
    except StopIteration as end:
        return x + len(end.args)


def memo_of_a_copy(x: torch.Tensor, held: Any) -> Any:
    made = copy.deepcopy([[1], 2], held.memo)
    return x + (1 if held.memo else 0), made


def documentation_of_a_property(x: torch.Tensor, text: Any) -> Any:
    def getter(self: Any) -> None:
        """The getter's."""

    return x, property(getter, doc=text).__doc__


def name_in_a_message(x: torch.Tensor, name: Any) -> Any:
    def function() -> None: ...

    function.__qualname__ = name or "absent"
    try:
        function(1)  # type: ignore[call-arg]
    except TypeError as error:
        return x, str(error)


class Adds:
    def __init__(self, result: Any) -> None:
        self.result = result

    def __add__(self, other: Any) -> Any:
        return self.result

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])

    def __length_hint__(self) -> Any:
        return self.result


class AddsReflected:
    def __radd__(self, other: Any) -> float:
        return 100.0


def answer_of_an_operator(x: torch.Tensor, answer: Any) -> Any:
    return x + (Adds(answer) + AddsReflected())


def length_hint(x: torch.Tensor, hint: Any) -> Any:
    return x + len(list(Adds(hint)))


CASES: list[tuple[Program, Any, Any]] = [
    (sent_to_a_new_generator, None, 1),
    (sent_through_a_delegate, None, 7),
    (returned_by_a_generator, None, 5),
    (memo_of_a_copy, SimpleNamespace(memo=None), SimpleNamespace(memo={})),
    (documentation_of_a_property, None, "given"),
    (name_in_a_message, "first", "second"),
    (answer_of_an_operator, NotImplemented, 5.5),
    (length_hint, NotImplemented, -1),
]


@pytest.mark.parametrize(("program", "first", "second"), CASES, ids=[case[0].__name__ for case in CASES])
def test_another_value_in_the_next_call(program: Program, first: Any, second: Any) -> None:
    compiled = kiln.compile(program, backend="eager")
    for value in (first, second, first):
        assert_like_eager(compiled, program, X, value)
