"""Programs as users write them: results, side effects, output and exceptions are those of eager.

A case gets `compile` (`kiln.compile`, or nothing for eager), runs its program and returns all that can be seen of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln

CASES: list[Callable[[Any], Any]] = []


def case(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    CASES.append(function)
    return function


def ones() -> torch.Tensor:
    return torch.ones(2)


@case
def a_partial_among_other_results(compile):
    x, bound = compile(lambda x: (x + 1, functools.partial(max, 5, key=abs)))(ones())
    return x, bound(-7), bound.func is max, bound.args


@case
def the_right_operand_of_a_derived_class_is_asked_first(compile):
    class Base:
        def __add__(self, other):
            return "Base.add"

        def __radd__(self, other):
            return "Base.radd"

        def __eq__(self, other):
            return "Base.eq"

        def __lt__(self, other):
            return "Base.lt"

    class Derived(Base):
        def __radd__(self, other):
            return "Derived.radd"

        def __gt__(self, other):
            return "Derived.gt"

    def program(x):
        a, b = Base(), Derived()
        return a + b, b + a, a == b, a < b, b + b, x

    return compile(program)(ones())


def seen(value: Any) -> Any:
    """What can be compared of a result."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.requires_grad, value.is_leaf, value.stride(), value.tolist()
    if isinstance(value, list | tuple):
        return type(value), [seen(one) for one in value]
    if isinstance(value, dict):
        return type(value), [(key, seen(one)) for key, one in value.items()]
    if isinstance(value, BaseException):
        return type(value), str(value)
    return (
        value
        if isinstance(value, type) or not hasattr(value, "__dict__")
        else (type(value).__name__, seen(vars(value)))
    )


@pytest.mark.filterwarnings("ignore::kiln.pipeline.session.KilnWarning")
@pytest.mark.parametrize("backend", ["eager", "kiln"])
@pytest.mark.parametrize("program", CASES, ids=lambda one: one.__name__)
def test_result_is_eagers(program: Any, backend: str, capsys: Any) -> None:
    torch.manual_seed(0)
    expected, printed = seen(program(lambda function: function)), capsys.readouterr().out
    torch.manual_seed(0)
    got = seen(program(functools.partial(kiln.compile, backend=backend)))
    assert got == expected
    assert capsys.readouterr().out == printed
