"""Exceptions that leave a branch or a loop are the program's, and not errors of torch's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as torch_map

import kiln


class OwnError(Exception):
    pass


def always(*args: Tensor) -> Any:
    raise OwnError


def sometimes(i: Tensor, x: Tensor) -> Any:
    if i > 1:
        raise OwnError
    return i + 1, x * 2


def loop(x: Tensor, body: Any) -> Any:
    return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))


def in_a_context(x: Tensor, body: Any) -> Any:
    with torch.no_grad():
        return loop(x, body)


def in_the_test(x: Tensor, body: Any) -> Any:
    return while_loop(always, lambda i, x: (i + 1, x), (torch.tensor(0), x))


PROGRAMS = [
    loop,
    in_a_context,
    in_the_test,
    lambda x, body: scan(lambda c, row: always(c, row), torch.zeros(()), x),
    lambda x, body: torch_map(lambda row: always(row), x),
    lambda x, body: torch.cond(x.sum() > 0, always, lambda x: x, (x,)),
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("body", [always, sometimes])
def test_exceptions_are_those_of_the_program(program: Callable[..., Any], body: Any) -> None:
    compiled = kiln.compile(program, backend="eager")

    def caught(x: Tensor) -> str:
        try:
            return str(program(x, body))
        except OwnError:
            return "caught"

    for _ in range(2):
        with pytest.raises(OwnError):
            compiled(torch.ones(3), body)
    assert kiln.compile(caught, backend="eager")(torch.ones(3)) == "caught"


def test_what_is_assumed_in_a_nested_graph_is_not_checked_outside() -> None:
    """The check of `i < 5` read the first input of the region in place of `i`."""

    def body(i: Tensor, x: Tensor) -> Any:
        if i > 5:
            raise OwnError
        return i + 1, x * 2

    found = kiln.compile(loop, backend="eager")(torch.full((1,), 9.0), body)
    torch.testing.assert_close(found, (torch.tensor(3), torch.full((1,), 72.0)))
