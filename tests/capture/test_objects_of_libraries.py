"""Coroutines that are driven by hand, `SimpleNamespace`s, `torch.broadcast_shapes`, paths: one graph each."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

import kiln

from .test_numpy_arrays import same


class Number:
    def __await__(self) -> Generator[int, Any, Any]:
        return (yield 5)


async def scaled(x: torch.Tensor) -> Any:
    return x * await Number()


def coroutines(x: torch.Tensor) -> Any:
    first, closed, broken = scaled(x), scaled(x), scaled(x)
    given = first.send(None)
    result = text = None
    try:
        first.send(3)
    except StopIteration as stop:
        result = stop.value
    closed.send(None)
    closed.close()
    broken.send(None)
    try:
        broken.throw(ValueError("thrown"))
    except ValueError as error:
        text = str(error)
    return result, given, text


class Rectangle(types.SimpleNamespace):
    def area(self) -> Any:
        return self.width * self.height


def namespaces(x: torch.Tensor) -> Any:
    made = types.SimpleNamespace(y=x, k=2)
    made.y = made.y * made.k
    made.z = 1
    del made.k
    shape = Rectangle(width=x, height=3)
    shape.height += 1
    lacking = None
    try:
        made.lacking  # noqa: B018 - it raises
    except AttributeError as error:
        lacking = str(error)
    return made.y, shape.area(), vars(made)["z"], hasattr(made, "k"), sorted(vars(shape)), lacking


def shapes(x: torch.Tensor) -> Any:
    shape = torch.broadcast_shapes(x.shape, (1, 3), (3,))
    return x.expand(shape), tuple(shape), torch.broadcast_shapes((2,), 2), torch.broadcast_shapes()


def paths(x: torch.Tensor) -> Any:
    return x, os.path.join("a", "b"), os.fspath("c"), os.path.splitext("d.e")


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [coroutines, namespaces, shapes, paths])
def test_objects_of_libraries(program: Callable[[torch.Tensor], Any], dynamic: bool | None) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True, dynamic=dynamic, options={"cache": False})
    for rows in (1, 4, 5):
        x = torch.randn(rows, 3)
        assert same(compiled(x), program(x))


def test_a_namespace_that_leaves() -> None:
    def f(x: torch.Tensor) -> Any:
        made = Rectangle(width=x, height=3)
        return made, made

    first, second = kiln.compile(f, backend="eager", fullgraph=True, options={"cache": False})(torch.ones(2))
    assert type(first) is Rectangle and first is second and first.height == 3
    torch.testing.assert_close(first.area(), torch.full((2,), 3.0))
