"""Edges of the protocols of Python where one wrong condition of the interpreter shows: who is asked, with what."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kiln


def assert_same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """A tensor, then what Python compares."""
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


class ByName(type):
    """Its classes tell by the name of a class whether it is theirs."""

    def __subclasscheck__(cls, other: type) -> bool:
        return other.__name__ == "Known"


class Known: ...


class Other: ...


class Asked(metaclass=ByName): ...


def subclass_checks(x: Tensor) -> Any:
    return x + issubclass(Known, Asked) * 2 + issubclass(Other, Asked), issubclass(Other, (int, Asked))


def catching() -> Iterator[int]:
    try:
        yield 1
    except KeyError as error:
        yield len(error.args) + 5


def thrown_class(x: Tensor) -> Any:
    generator = catching()
    return x * next(generator) + generator.throw(KeyError), list(generator)


def thrown_class_with_an_instance(x: Tensor) -> Any:
    generator = catching()
    return x * next(generator) + generator.throw(KeyError, KeyError(1, 2)), list(generator)


def one_exception_through_c_twice(x: Tensor) -> Any:
    error, same = ValueError("a"), []

    def key(given: ValueError) -> int:
        raise given

    for _ in range(2):
        try:
            sorted([error, error], key=key)
        except ValueError as caught:
            same.append(caught is error)
    return x + len(same), same


def exhausted_iterator_of_a_dict(x: Tensor) -> Any:
    table = {"a": 1, "b": 2}
    keys = iter(table)
    found = list(keys)
    del table["a"]
    table["c"] = 3
    return x + len(table), found, next(keys, None), next(keys, None)


class Reference(weakref.ref):  # type: ignore[type-arg]
    """Returned, it keeps its class."""


class Node:
    def __init__(self, value: Tensor) -> None:
        self.value = value


def references(x: Tensor) -> Any:
    node = Node(x + 1)
    own, plain = Reference(node), weakref.ref(node)
    return type(own) is Reference, type(plain) is weakref.ref, own().value, node, own, plain  # type: ignore[union-attr]


PROGRAMS = [
    *(subclass_checks, thrown_class, thrown_class_with_an_instance, one_exception_through_c_twice),
    *(exhausted_iterator_of_a_dict,),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_in_one_graph(program: Callable[[Tensor], Any]) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for x in (torch.ones(2), torch.zeros(3)):
        assert_same(compiled(x), program(x))


def test_references_that_leave_keep_their_class() -> None:
    *known, node, own, plain = kiln.compile(references)(torch.ones(2))
    assert known[:2] == [True, True] and torch.equal(known[2], torch.full((2,), 2.0))
    assert type(own) is Reference and type(plain) is weakref.ref and own() is node and plain() is node


class Fallback:
    """Its property breaks the graph, and raises what `__getattr__` answers."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    @property
    def value(self) -> float:
        self.x.untyped_storage()
        if self.x.shape[0] > 2:
            raise AttributeError("value")
        return 3.0

    def __getattr__(self, name: str) -> float:
        return 7.0


def test_an_attribute_error_behind_a_break_in_a_property_reaches_getattr() -> None:
    compiled = kiln.compile(lambda own: own.x * own.value)
    for size in (2, 3, 2, 4):
        own = Fallback(torch.ones(size))
        torch.testing.assert_close(compiled(own), own.x * own.value)


def test_a_resumed_frame_has_the_variables_that_its_code_asks_for() -> None:
    def program(x: Tensor) -> Any:
        first = x + 1
        x.untyped_storage()
        return first * 2, sorted(locals())

    compiled = kiln.compile(program)
    for x in (torch.ones(2), torch.full((3,), 2.0)):
        assert_same(compiled(x), program(x))
    assert len({entry.where for entry in compiled.report().breaks}) == 1


@pytest.mark.parametrize("make", [lambda n: np.zeros((n, 3), order="F"), lambda n: np.ones((n, 3), np.float32, "F")])
def test_arrays_of_changing_sizes_with_an_order(make: Callable[[int], Any]) -> None:
    compiled = kiln.compile(lambda x: torch.from_numpy(make(x.shape[0])) + x[0], dynamic=True)
    for size in (3, 4, 5):
        expected = torch.from_numpy(make(size)) + 1
        found = compiled(torch.ones(size))
        assert found.stride() == expected.stride() and found.dtype is expected.dtype and torch.equal(found, expected)
