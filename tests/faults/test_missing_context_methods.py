"""A `with` of an object that is no context manager raises eager's error, also behind a graph break."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


class OnlyEnters:
    def __enter__(self) -> None:
        pass


class OnlyLeaves:
    def __exit__(self, *error: object) -> None:
        pass


class Asynchronous:
    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *error: object) -> None:
        pass


def local() -> object:
    class Local:
        pass

    return Local()


def error_of(x: Tensor, manager: Any) -> tuple[Tensor, str]:
    try:
        with manager:
            x = x * 2
    except (TypeError, AttributeError) as error:
        return x + 1, str(error)
    return x, ""


def behind_a_break(x: Tensor, manager: Any) -> tuple[Tensor, str]:
    print(end="")
    return error_of(x + 1, manager)


@pytest.mark.parametrize("program", [error_of, behind_a_break])
@pytest.mark.parametrize("make", [lambda: 3, OnlyEnters, OnlyLeaves, Asynchronous, local])
def test_eagers_error(program: Any, make: Any) -> None:
    x = torch.ones(2)
    compiled = kiln.compile(program)
    for _ in range(2):
        result, text = compiled(x, make())
        expected, wanted = program(x, make())
        assert text == wanted and torch.equal(result, expected)
