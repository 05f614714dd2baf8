"""Deques made in a frame are those of C: in one graph, with eager's results and errors; sizes in them stay symbols."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, MutableSequence
from typing import Any

import pytest
import torch

import kiln


def bounded(x: torch.Tensor) -> object:
    queue: deque[Any] = deque([1, 2], maxlen=3)
    queue.append(x)
    queue.extendleft([x + 1, x + 2])
    queue += [3]
    queue[0] = x * 5
    return queue, queue.maxlen, len(queue), queue[-1], isinstance(queue, MutableSequence)


def tree_walk(x: torch.Tensor) -> object:
    queue, seen = deque([(x, 0)]), []
    while queue:
        value, depth = queue.popleft()
        seen.append(value * depth)
        if depth < 3:
            queue.append((value + 1, depth + 1))
    return seen


def moved(x: torch.Tensor) -> object:
    queue: deque[Any] = deque(range(4))
    queue.rotate(1)
    queue.reverse()
    queue.insert(0, x)
    first, *rest = queue
    return first, rest, queue, copy.copy(queue), list(reversed(queue)), f"{deque([1], 2)}"


def errors(x: torch.Tensor) -> object:
    found = []
    queue = deque([1])
    for call in (deque().pop, lambda: queue[3], lambda: hash(queue), lambda: queue.remove(2), lambda: queue.index(5)):
        try:
            call()
        except Exception as error:
            found.append((type(error), str(error)))
    return found


def grown_in_its_loop(x: torch.Tensor) -> object:
    queue = deque([1, 2])
    try:
        for item in queue:
            queue.append(item)
    except RuntimeError as error:
        return str(error)
    return "no error"


def sizes(x: torch.Tensor) -> object:
    queue = deque([x.shape[0], x.shape[0] + 1])
    return queue.count(x.shape[0] + 1), queue.popleft() * 2, queue, x.view(queue[0] - 1)


def bound_methods(x: torch.Tensor) -> object:
    queue = deque([x])
    push, take = queue.append, queue.popleft
    push(x + 1)
    return take(), queue, sum(queue), dict(enumerate(deque("ab"))), list(map(str, deque([1])))


@pytest.mark.parametrize("program", [bounded, tree_walk, moved, errors, grown_in_its_loop, sizes, bound_methods])
def test_like_eager(program: Callable[[torch.Tensor], object]) -> None:
    compiled = kiln.compile(lambda x: (x.sin(), program(x)), backend="eager", fullgraph=True, options={"cache": False})
    for size in (2, 3, 4):
        x = torch.arange(float(size))
        assert repr(compiled(x)) == repr((x.sin(), program(x)))
    assert compiled.report().compiles <= 2
