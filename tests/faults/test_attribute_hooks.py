"""`__getattr__` answers where a property or `__get__` of the program raises AttributeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import kiln
from tests.faults.outcome import assert_like_eager


class Forwarding:
    def __get__(self, instance: object, owner: type) -> object:
        return self.nothing  # type: ignore[attr-defined]


class Computed:
    forwarded = Forwarding()

    @property
    def missing(self) -> object:
        return self.absent

    @property
    def failing(self) -> object:
        raise AttributeError("failing")

    @property
    def wrong(self) -> object:
        raise ValueError("wrong")

    def __getattr__(self, name: str) -> Any:
        if name == "nowhere":
            raise AttributeError(name)
        return "found", name


class Net(torch.nn.Module):
    forwarded = Forwarding()

    def __getattr__(self, name: str) -> Any:
        return 5 if name == "forwarded" else super().__getattr__(name)

    @property
    def failing(self) -> object:
        return self.nowhere

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.forwarded, hasattr(self, "failing"), getattr(self, "failing", 2)


ITEM, NET = Computed(), Net()
PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: (x + 1, ITEM.forwarded, ITEM.missing, ITEM.failing),
    lambda x: (x + 1, getattr(ITEM, "failing", 3), hasattr(ITEM, "failing"), hasattr(ITEM, "nowhere")),
    lambda x: (x + 1, ITEM.wrong),
    lambda x: NET(x),
]


def test_getattr_answers_for_properties() -> None:
    for program in PROGRAMS:
        compiled = kiln.compile(program, backend="eager", options={"cache": False})
        assert_like_eager(compiled, program, torch.ones(2))
        assert not compiled.report().breaks
