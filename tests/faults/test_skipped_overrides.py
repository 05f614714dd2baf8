"""Where `__torch_function__` is skipped, it is so behind a graph break, and in a call from there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor], object]


class Kept(torch.Tensor):
    """Its operations give tensors of the class, where `__torch_function__` is not skipped."""


@torch.compiler.disable
def in_python(x: Tensor) -> None:
    pass


def with_a_break_inside(disabled: type[AbstractContextManager[None]]) -> Program:
    def around_a_break(x: Tensor) -> object:
        with disabled():
            y = x + 1
            in_python(x)
            z = x * y
        return type(y), type(z), type(x + 1)

    return around_a_break


def left_by_return(x: Tensor) -> object:
    with torch._C.DisableTorchFunctionSubclass():
        in_python(x)
        return type(x * 2)


def nested(x: Tensor) -> object:
    with torch._C.DisableTorchFunctionSubclass():
        with torch._C.DisableTorchFunctionSubclass():
            in_python(x)
        y = x * 2
    return type(y), type(x * 2)


def without_a_break(x: Tensor) -> object:
    with torch._C.DisableTorchFunctionSubclass(), torch._C.DisableTorchFunctionSubclass():
        y = x * 2
    return type(y), type(x * 2)


KINDS = (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction)
CONTEXTS: list[Callable[[], AbstractContextManager[None]]] = [nullcontext, *KINDS]


@pytest.mark.parametrize("program", [*map(with_a_break_inside, KINDS), left_by_return, nested, without_a_break])
def test_classes_of_results(program: Program) -> None:
    compiled, x = kiln.compile(program), torch.ones(2).as_subclass(Kept)
    for _ in range(2):
        for context in CONTEXTS:
            with context():
                expected, found = program(x), compiled(x)
            assert found == expected
            assert torch._C._is_torch_function_enabled()


def test_no_break_is_no_graph_break() -> None:
    kiln.compile(without_a_break, fullgraph=True)(torch.ones(2).as_subclass(Kept))
