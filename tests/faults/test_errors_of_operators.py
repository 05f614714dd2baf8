"""Errors that torch's operators raise while a region runs: handlers of the program catch them, at their line.

Nothing of the call may be lost: what it did to Python objects before the error is there, and what runs after it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln
from kiln.support.errors import KilnError
from tests.faults.outcome import assert_like_eager


def pooled(x: Tensor, k: int) -> Tensor:
    return F.max_pool1d(x, 2, padding=k)


def padded(x: Tensor, k: int) -> Tensor:
    return F.pad(x, (k, 1), mode="reflect")


def resized(x: Tensor, k: int) -> Tensor:
    return F.interpolate(x, size=4 - k)


def largest(x: Tensor, k: int) -> Tensor:
    return x.topk(k + 1)[0]


def drawn(x: Tensor, k: int) -> Tensor:
    return torch.multinomial(x.abs()[0], 2 - k)


OPERATORS = [pooled, padded, resized, largest]


def handled(operator: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    def program(log: list[Any], x: Tensor, k: int) -> Any:
        log.append("before")
        y = x * 2
        try:
            y = operator(y, k)
            log.append("no error")
        except RuntimeError as error:
            log.append(str(error))
            y = y - 1
        finally:
            log.append("finally")
        return y + 1

    return program


@pytest.mark.parametrize("operator", [*OPERATORS, drawn])
def test_an_error_of_an_operator_is_handled(operator: Callable[[Tensor, int], Tensor]) -> None:
    program = handled(operator)
    compiled = kiln.compile(program, options={"cache": False, "random": "eager"})
    for number in (1, 4, 1, 5, 0):
        assert_like_eager(compiled, program, [], torch.arange(4.0)[None, None], number)


@pytest.mark.parametrize("operator", OPERATORS[1:])
def test_an_error_of_an_operator_has_the_line_of_its_call(operator: Callable[[Tensor, int], Tensor]) -> None:
    compiled, log = kiln.compile(unhandled, options={"cache": False}), list[str]()
    compiled(log, operator, torch.ones(1, 1, 4), 1)
    with pytest.raises(RuntimeError) as found:
        compiled(log, operator, torch.ones(1, 1, 4), 4)
    assert operator.__code__.co_firstlineno in [entry.lineno for entry in found.traceback]
    assert log == ["before", "after", "before"] and found.value.__context__ is None


def unhandled(log: list[str], operator: Callable[[Tensor, int], Tensor], x: Tensor, k: int) -> Tensor:
    log.append("before")
    x = operator(x, k)
    log.append("after")
    return x


def test_an_error_of_another_compilers_region_is_not_hidden() -> None:
    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            raise RuntimeError("of the back end")

        return run

    with pytest.raises(RuntimeError, match="of the back end"):
        kiln.compile(lambda x: x.topk(2)[0], backend=backend)(torch.ones(3))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.reshape(7, 7),
        lambda x: x[5],
        lambda x: x + "a",
        lambda x: x.sum(dim=3),
        lambda x: torch.nn.functional.interpolate(x, mode="none"),
    ],
)
def test_the_program_catches_errors_of_a_whole_graph_as_those_of_eager(program: Callable[[Any], Any]) -> None:
    x = torch.ones(3)
    with pytest.raises(Exception) as expected:
        program(x)
    with pytest.raises(expected.type) as caught:
        kiln.compile(program, fullgraph=True)(x)
    assert isinstance(caught.value, KilnError), "it names the line of the program"
