"""Assertions on `and` and `or` of truth values of tensors need no break, and second operands are as lazy as in eager.

PYTEST_DONT_REWRITE, which would give the assertions other code.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor, Tensor], Tensor]
asked: list[int] = []


def one_of_two(a: Tensor, b: Tensor) -> Tensor:
    assert (a > 0).all() or (b > 0).all(), "neither"
    return a + b


def both(a: Tensor, b: Tensor) -> Tensor:
    if (a > 0).all() and (b > 0).all():
        raise ValueError("both")
    return a - b


def one_of_three(a: Tensor, b: Tensor) -> Tensor:
    assert (a > 0).all() or (b > 0).all() or (a == b).all(), f"none of {a.shape}"
    return a * b


def monotone(a: Tensor, b: Tensor) -> Tensor:
    up = a[1:] > a[:-1]
    assert up.all() or (~up).all()
    return a * b


def require_monotone(name: str, a: Tensor) -> None:
    up = a[1:] > a[:-1]
    assert up.all() or (~up).all(), "{} must be monotone".format(name)  # noqa: UP032


def in_a_callee(a: Tensor, b: Tensor) -> Tensor:
    require_monotone("a", a)
    return a * b


def noted(x: Tensor) -> Tensor:
    asked.append(1)
    return (x > 0).all()


def with_effects(a: Tensor, b: Tensor) -> Tensor:
    assert (a > 0).all() or noted(b), "neither"
    return a + b


def that_may_raise(a: Tensor, b: Tensor) -> Tensor:
    assert (a > 0).all() or (b[a.long() + 9] > 0).all(), "neither"
    return a + b


INPUTS = [torch.tensor(row) for row in ([1.0, 2, 3], [-1.0, 2, 3], [3.0, 2, 1], [-1.0, -2, 3])]


def outcome(program: Program, a: Tensor, b: Tensor) -> object:
    del asked[:]
    try:
        made: object = program(a, b).tolist()
    except (AssertionError, ValueError, IndexError) as error:
        made = type(error), str(error).splitlines()[:1]
    return made, len(asked)


PROGRAMS = (one_of_two, both, one_of_three, monotone, in_a_callee, with_effects, that_may_raise)


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program: Program) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    for a in INPUTS:
        for b in INPUTS:
            expected, got = outcome(program, a, b), outcome(compiled, a, b)
            if program is that_may_raise and isinstance(expected[0], tuple):  # type: ignore[index]
                assert got[0][0] is expected[0][0], (a, b)  # type: ignore[index]
            else:
                assert got == expected, (a, b)


@pytest.mark.parametrize("program", PROGRAMS[:5])
def test_one_graph(program: Program) -> None:
    compiled = kiln.compile(program, fullgraph=True, options={"cache": False})
    a, b = torch.tensor([1.0, 2, 3]), torch.tensor([1.0, -2, 3])
    assert outcome(compiled, a, b) == outcome(program, a, b)
