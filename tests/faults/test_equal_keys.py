"""Of equal keys and elements the one that eager keeps: 3.0, 3 and True, 1 are equal, but not the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager


def updated(table: dict[Any, int], other: dict[Any, int]) -> dict[Any, int]:
    table.update(other)
    return table


def merged(table: dict[Any, int], other: dict[Any, int]) -> dict[Any, int]:
    table |= other
    return table


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a set": lambda n: {n, 3},
    "a set, the number last": lambda n: {3, n},
    "truths": lambda n: {n, True},
    "set()": lambda n: set((n, 3)).pop(),
    "frozenset()": lambda n: frozenset([n, 3]),
    "list()": lambda n: list({n, 3}),
    "a comprehension": lambda n: {item for item in (n, 3)},
    "or": lambda n: ({n} | {3}, {3} | {n}),
    "and": lambda n: ({n} & {3}, {3} & {n}, {n, 5} & {3}, {3} & {n, 5}),
    "intersection": lambda n: ({n}.intersection([3]), {3}.intersection((n, 3)), {n, 5}.intersection({3})),
    "xor": lambda n: {n, 3} ^ {5},
    "minus": lambda n: ({n, 3} - {5}, {n}.union({3}), {3}.union([n])),
    "a dict": lambda n: {n: 1, 3: 2},
    "dict()": lambda n: dict([(n, 1), (3, 2)]),
    "fromkeys": lambda n: dict.fromkeys([n, 3]),
    "update": lambda n: updated({n: 1}, {3: 5}),
    "in-place or": lambda n: merged({n: 1}, {3: 5}),
    "or of dicts": lambda n: {n: 1} | {3: 5},
    "**": lambda n: {n: 1, 3: 5},
    "a comprehension of a dict": lambda n: {key: 0 for key in (n, 3)},
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name: str, dynamic: bool | None) -> None:
    def program(x: Tensor, n: Any) -> Any:
        return x + 1, repr(PROGRAMS[name](n))

    compiled = kiln.compile(program, dynamic=dynamic)
    for number in (2.5, 3.0, 1.0, True, 3, 1, 0.0, 3.0):
        assert_like_eager(compiled, program, torch.ones(1), number)
