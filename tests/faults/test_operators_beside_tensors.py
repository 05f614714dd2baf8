"""Operators on a tensor and an object of the program that is no tensor and no number: the object's own methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

SIGNS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
COMPARED = ("lt", "le", "eq", "ne", "gt", "ge")


def told(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        self.asked.append(name)
        return name, other * self.factor

    return method


def refused(self: Any, other: Any) -> Any:
    return NotImplemented


class Base:
    __hash__ = object.__hash__

    def __init__(self) -> None:
        self.factor, self.asked = 2.0, list[str]()


def class_of(*names: str, method: Callable[[str], Any] = told) -> type[Base]:
    return type("Made", (Base,), {f"__{name}__": method(f"__{name}__") for name in names})


KINDS = {
    "left": class_of(*SIGNS, *COMPARED),
    "right": class_of(*[f"r{sign}" for sign in SIGNS]),
    "both": class_of(*SIGNS, *[f"r{sign}" for sign in SIGNS], *[f"i{sign}" for sign in SIGNS]),
    "refuses": class_of(*SIGNS, *[f"r{sign}" for sign in SIGNS], *COMPARED, method=lambda name: refused),
    "none": Base,
}
OPERATORS = {
    **{name: getattr(operator, name + "_" * (name in ("and", "or"))) for name in (*SIGNS, *COMPARED)},
    **{f"i{name}": getattr(operator, f"i{name}") for name in SIGNS},
}


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("side", ["object first", "tensor first"])
@pytest.mark.parametrize("kind", KINDS)
def test_operators_ask_the_object(kind: str, side: str) -> None:
    for name, function in OPERATORS.items():

        def outside(x: Tensor, given: Base, function: Callable[..., Any] = function) -> Any:
            return function(given, x) if side == "object first" else function(x, given)

        def inside(x: Tensor, apply: Callable[..., Any] = outside) -> Any:
            given = KINDS[kind]()
            return apply(x, given), given.asked

        for program, objects in ((outside, [KINDS[kind]()]), (inside, [])):
            compiled = kiln.compile(program, backend="eager", options={"cache": False})
            for _ in range(2):
                x = torch.full((2,), 3)
                expected, actual = outcome(program, x, *objects), outcome(compiled, x, *objects)
                assert repr(actual) == repr(expected), name
            report = kiln.report_of(compiled)
            if not isinstance(expected, str) and not (kind == "right" and name == "truediv"):
                assert (report.breaks, report.eager) == ([], 0), (name, str(report))


def test_a_gradient_goes_through_an_object_s_operator() -> None:
    class Scale:
        def __init__(self, by: Tensor) -> None:
            self.by = by

        def __rmatmul__(self, x: Tensor) -> Tensor:
            return x * self.by

    def step(x: Tensor, by: Tensor) -> Tensor:
        return (x @ Scale(by)).sum()

    grads = []
    for run in (step, kiln.compile(step, fullgraph=True)):
        x, by = torch.full((3,), 2.0, requires_grad=True), torch.full((3,), 5.0, requires_grad=True)
        run(x, by).backward()
        grads.append((x.grad, by.grad))
    torch.testing.assert_close(*grads)
