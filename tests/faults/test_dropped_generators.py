"""A loop that ends early drops its generator, which leaves its `with` there: not when the function returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor], Tensor]


@torch.compiler.disable
def in_python(x: Tensor) -> None:
    pass


def numbers() -> Iterator[int]:
    with torch.no_grad():
        yield from range(3)


def products(x: Tensor) -> Iterator[Tensor]:
    with torch.no_grad():
        for number in range(3):
            in_python(x)
            yield x * number


def left_by_break(x: Tensor) -> Tensor:
    for number in numbers():
        y = x + number
        in_python(y)
        if number == 1:
            break
    return y * x


def broken_inside(x: Tensor) -> Tensor:
    for y in products(x):  # noqa: B007
        break
    return y + x


def left_by_return(x: Tensor) -> Tensor:
    def first() -> Tensor:
        for number in numbers():
            in_python(x)
            return x * number
        return x

    return first() + x * x


def left_by_exception(x: Tensor) -> Tensor:
    try:
        for _ in numbers():
            in_python(x)
            raise ValueError
    except ValueError:
        pass
    return x * x


def beside_another(x: Tensor) -> Tensor:
    for _ in zip(numbers(), numbers(), strict=True):
        in_python(x)
        break
    return x * x


def begun_behind_a_break(x: Tensor) -> Tensor:
    in_python(x)
    for number in numbers():
        if number == 1:
            break
    return x * number


def deleted(x: Tensor) -> Tensor:
    numbers_ = numbers()
    for _ in numbers_:
        in_python(x)
        break
    del numbers_
    return x * x


PROGRAMS = (
    *(left_by_break, broken_inside, left_by_return, left_by_exception, beside_another, begun_behind_a_break, deleted),
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_grad_mode_behind_a_loop(program: Program) -> None:
    compiled = kiln.compile(program)
    for size in (2, 2, 3):
        x = torch.ones(size, requires_grad=True)
        found, expected = compiled(x), program(x)
        assert found.requires_grad and expected.requires_grad
        torch.testing.assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x))
