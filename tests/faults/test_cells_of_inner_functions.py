"""Variables that functions read which are reached through another object: a compiled function, a cached property,
a field of a dataclass. They were those of the first call, for no path led to the function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Read = Callable[..., Any]
Program = Callable[[Tensor], Tensor]


@torch.compiler.disable
def in_python() -> None:
    pass


def compiled_inside(read: Read) -> Program:
    scaled, plain = kiln.compile(lambda x: x * read()), kiln.compile(read)
    return lambda x: scaled(x) + plain()


def compiled_inside_with_breaks(read: Read) -> Program:
    @kiln.compile
    def scaled(x: Tensor) -> Tensor:
        y = x * read()
        in_python()
        return y + read()

    def program(x: Tensor) -> Tensor:
        y = scaled(x)
        in_python()
        return y * scaled(x)

    return program


def partial_of_compiled(read: Read) -> Program:
    return functools.partial(kiln.compile(lambda number, x: x * read() + number), 1)


def cached_property(read: Read) -> Program:
    class Base:
        factor = functools.cached_property(read)

    class Derived(Base):
        @functools.cached_property
        def other(self) -> Any:
            return read() + 1

    return lambda x: x * Derived().factor + Derived().other


def field_of_a_dataclass(read: Read) -> Program:
    @dataclasses.dataclass
    class Settings:
        factor: Any = dataclasses.field(default_factory=lambda: read())

    return lambda x: x * dataclasses.fields(Settings)[0].default_factory() + Settings().factor  # type: ignore[misc]


PROGRAMS = [compiled_inside, compiled_inside_with_breaks, partial_of_compiled, cached_property, field_of_a_dataclass]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("make", PROGRAMS)
def test_a_variable_that_changes(make: Callable[[Read], Program], dynamic: bool | None) -> None:
    number: Any = 1
    program, expected = make(lambda *_: number), make(lambda *_: number)
    compiled = kiln.compile(program, dynamic=dynamic)
    values = ((3, 1), (3, 2), (4, 2), (4, 5), (4, 2.5), (3, torch.tensor(7.0)), (3, torch.tensor(8.0)))
    for size, number in values:  # noqa: B007
        torch.testing.assert_close(compiled(torch.ones(size)), expected(torch.ones(size)))


def test_a_global_of_a_function_without_a_module_behind_a_break() -> None:
    text = "def add(x):\n    global k\n    k += 1\n    return x * k\ndef both(x): return add(x) + k"
    spaces: list[dict[str, Any]] = [{"k": 1}, {"k": 1}]
    for space in spaces:
        exec(text, space)
    programs = [lambda x, space=space: space["add"](x) + space["both"](x) for space in spaces]
    compiled, expected = kiln.compile(programs[0]), programs[1]
    for size in (3, 5, 4, 3):
        torch.testing.assert_close(compiled(torch.ones(size)), expected(torch.ones(size)))
        assert spaces[0]["k"] == spaces[1]["k"]
        for space in spaces:
            space["k"] *= 2


def test_a_default_of_a_compiled_function_that_changes() -> None:
    def scaled(x: Tensor, factor: int = 2) -> Tensor:
        return x * factor

    inner = kiln.compile(scaled)
    compiled = kiln.compile(lambda x: inner(x))
    for factor in (2, 3, 4, 2):
        scaled.__defaults__ = (factor,)
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), float(factor)))
