"""Functions under `functools.lru_cache`: what a cache holds is one object, and side effects are not repeated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Compile = Callable[[Any], Any]


def changed_tensor(compile: Compile) -> Iterator[Any]:
    buffer = functools.lru_cache(torch.zeros)
    compiled = compile(lambda x: buffer(3).add_(x) * 2)
    for _ in range(3):
        yield compiled(torch.ones(3)).clone()
    buffer.cache_clear()
    yield compiled(torch.ones(3))


def changed_list(compile: Compile) -> Iterator[Any]:
    @functools.lru_cache
    def table(n: int) -> list[int]:
        return [n]

    def program(x: Tensor) -> Tensor:
        table(3).append(1)
        return x * sum(table(3))

    compiled = compile(program)
    for _ in range(3):
        yield compiled(torch.ones(2))


def not_kept(compile: Compile) -> Iterator[Any]:
    buffer = functools.lru_cache(maxsize=0)(torch.zeros)
    compiled = compile(lambda x: buffer(3).add_(x))
    for _ in range(2):
        yield compiled(torch.ones(3))


def counted_calls(compile: Compile) -> Iterator[Any]:
    seen: list[int] = []

    @functools.cache
    def added(x: Tensor) -> Tensor:
        seen.append(len(seen))
        return x + 1

    compiled = compile(lambda x: added(x) * 2)
    x = torch.ones(3)
    for argument in (x, x, torch.zeros(3), x):
        yield compiled(argument), list(seen)


def changed_object(compile: Compile) -> Iterator[Any]:
    class Sum:
        def __init__(self) -> None:
            self.value = 4

        @functools.lru_cache  # noqa: B019
        def add(self, number: int) -> None:
            self.value += number

    def program(x: Tensor) -> Tensor:
        made = Sum()
        made.add(3)
        made.add(3)
        return x + made.value

    compiled = compile(program)
    for _ in range(2):
        yield compiled(torch.ones(2))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [changed_tensor, changed_list, not_kept, counted_calls, changed_object])
def test_cached_functions(program: Callable[[Compile], Iterator[Any]], dynamic: bool | None) -> None:
    expected = list(program(lambda function: function))
    found = list(program(lambda function: kiln.compile(function, dynamic=dynamic)))
    torch.testing.assert_close(found, expected)
