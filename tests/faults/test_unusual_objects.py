"""Programs on unusual objects that the compiler met with an error of its own (KILN9000) instead of eager's."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from tests.faults.outcome import assert_like_eager


@pytest.fixture(autouse=True)
def no_internal_fault() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert not [str(warning.message) for warning in caught if "KILN9" in str(warning.message)]


def deep(x: Tensor, depth: int) -> Tensor:
    return deep(x + 1, depth + 1)


class Bits(enum.Flag):
    A = 1
    B = 2


def set_on_none(x: Tensor) -> Tensor:
    object.__setattr__(None, "name", x)
    return x


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "no abstract methods": lambda x: (x + 1, hasattr(Bits, "__abstractmethods__"), hasattr(int, "__abstractmethods__")),
    "isinstance of None": lambda x: isinstance(x, None),  # type: ignore[arg-type]
    "isinstance of a number": lambda x: isinstance(3, (str, 4)),  # type: ignore[arg-type]
    "issubclass of None": lambda x: issubclass(int, None),  # type: ignore[arg-type]
    "endless recursion": lambda x: deep(x, 0),
    "attribute of None": set_on_none,
    "a flag without a name": lambda x: (x + bool(Bits(0)), Bits.A & Bits.B, Bits.A | Bits.B, x + (Bits(0) is Bits.A)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name: str) -> None:
    assert_like_eager(kiln.compile(PROGRAMS[name]), PROGRAMS[name], torch.ones(2))


def test_a_module_without_submodules() -> None:
    linear = nn.Linear(2, 2)
    linear.__dict__["_modules"] = None
    assert_like_eager(kiln.compile(lambda x: linear(x)), lambda x: linear(x), torch.ones(2))


def test_a_method_of_tensors_that_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.__mul__
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__mul__", lambda x, y: original(x, y) + 1)
        assert_like_eager(kiln.compile(lambda x: x * 2), lambda x: x * 2, torch.ones(2))
    assert_like_eager(kiln.compile(lambda x: x * 2), lambda x: x * 2, torch.ones(2))
