"""Built-in values at their edges, captured in one graph: each result is eager's."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import kiln

X = torch.arange(4.0)


def slice_of_one(x: torch.Tensor) -> object:
    cut = slice(3)
    return x + 1, cut.start, cut.stop, cut.step


def slice_of_two(x: torch.Tensor) -> object:
    cut = slice(1, 3)
    return x + 1, cut.start, cut.stop, cut.step


def uneven(x: torch.Tensor) -> object:
    return x + 1, list(itertools.zip_longest([1, 2, 3], [4], [5, 6], fillvalue=-1))


def orders(x: torch.Tensor) -> object:
    return x + 1, list(itertools.permutations([1, 2, 3], 2)), list(itertools.permutations([1, 2]))


def sets_and_others(x: torch.Tensor) -> object:
    listed, single, named = [1, 2], {1, 2}, {1: 2, 2: 3}
    others = listed == single, single == listed, listed != single, named == single, single == (1, 2)
    return x + 1, others, single == frozenset({2, 1}), single == {1}


def disjoint(x: torch.Tensor) -> object:
    return x + 1, {1, 2}.isdisjoint({3}), {1, 2}.isdisjoint({2}), {1}.isdisjoint(set()), set().isdisjoint(set())


PROGRAMS: tuple[Callable[[torch.Tensor], object], ...] = (
    slice_of_one, slice_of_two, uneven, orders, sets_and_others, disjoint,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_result_is_eagers(program: Callable[[torch.Tensor], tuple[object, ...]]) -> None:
    expected, got = program(X), kiln.compile(program, backend="eager", fullgraph=True)(X)
    assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]


def test_powers_of_infinities() -> None:
    inf = float("inf")
    base = torch.tensor([inf, inf, -inf, -inf, -inf, 2.0, 0.5, -0.5, 1.0, 0.0, float("nan")] * 3)
    power = torch.tensor([2.0, -1.0, 3.0, 2.0, 0.5, inf, inf, -inf, inf, -1.0, 0.0] * 3)
    torch.testing.assert_close(kiln.compile(torch.pow, fullgraph=True)(base, power), base**power, equal_nan=True)


def test_the_default_of_pop() -> None:
    program = lambda: ({}.pop("a", 1), {"a": 2}.pop("a", 1), {}.pop("a", None))  # noqa: E731
    assert kiln.compile(program, backend="eager")() == program()
