"""What takes items from an iterator uses each before it asks for the next: the code that runs for an item sees that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

X = torch.arange(4.0)
LAYERS = [torch.nn.Linear(4, 4) for _ in range(3)]
OUTER: list[int] = []


class Log(list):  # type: ignore[type-arg]
    pass


def logged(out: list[int], count: int) -> Iterator[int]:
    for k in range(count):
        out.append(k)
        yield k


def two_and_an_error() -> Iterator[int]:
    yield 1
    yield 2
    raise KeyError


def layer_after_layer(x: Tensor) -> Tensor:
    y = [x]
    y.extend(layer(y[-1]) for layer in LAYERS)
    return torch.stack(y)


def added_to_a_list(x: Tensor) -> Tensor:
    y = [x]
    y += (y[-1] * 2 + k for k in range(3))
    return torch.stack(y)


def mapped(x: Tensor) -> Tensor:
    y = Log([x])
    y.extend(map(lambda k: y[-1] + k, range(3)))
    return torch.stack(y)


def from_outside(x: Tensor) -> Tensor:
    OUTER.clear()
    OUTER.extend(len(OUTER) + 1 for _ in range(3))
    return x + sum(OUTER)


def updated_dict(x: Tensor) -> object:
    y = {"a": x}
    y.update((str(k), sum(y.values()) + k) for k in range(3))
    return y


def updated_set(x: Tensor) -> object:
    y = {1}
    y.update(len(y) + 10 for _ in range(3))
    y.update([7], (len(y) for _ in range(2)))
    return x, sorted(y)


def smaller_set(x: Tensor) -> object:
    y = {1, 2, 3, 4}
    y.difference_update(len(y) for _ in range(3))
    return x, sorted(y)


def made_anew(x: Tensor) -> object:
    y, z = [1, 2, 3], {1, 2}
    y.__init__(len(y) for _ in range(3))  # type: ignore[misc]
    z.__init__(len(z) for _ in range(3))  # type: ignore[misc]
    return x, y, sorted(z)


def up_to_an_error(x: Tensor) -> object:
    listed: list[int] = []
    held: set[int] = set()
    stored: dict[int, int] = {}
    for take in (listed.extend, held.update, lambda items: stored.update((k, k) for k in items)):
        with contextlib.suppress(KeyError, RuntimeError):
            take(two_and_an_error())
    return x, listed, sorted(held), stored


def up_to_the_answer(x: Tensor) -> object:
    out: list[int] = []
    asked = [logged(out, 5) for _ in range(4)]
    answers = 2 in asked[0], {2, 9}.isdisjoint(asked[1]), {0, 1}.issuperset(asked[2]), any(asked[3])
    return x, answers, [list(rest) for rest in asked], out


PROGRAMS = (
    layer_after_layer,
    added_to_a_list,
    mapped,
    from_outside,
    updated_dict,
    updated_set,
    smaller_set,
    made_anew,
    up_to_an_error,
    up_to_the_answer,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_item_is_used_before_the_next_is_taken(program: Callable[[Tensor], Any]) -> None:
    torch.testing.assert_close(kiln.compile(program, fullgraph=True)(X), program(X))


def test_a_break_inside_of_an_iterator_takes_no_item_twice() -> None:
    def program(x: Tensor) -> Tensor:
        y = [x]

        def turns() -> Iterator[Tensor]:
            for k in range(3):
                print(end="")
                torch._dynamo.graph_break()
                yield y[-1] + k

        y.extend(turns())
        return torch.stack(y)

    assert torch.equal(kiln.compile(program)(X), program(X))
