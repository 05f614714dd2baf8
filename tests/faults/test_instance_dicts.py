"""The dict of an instance beside what is not in it: slots, and data descriptors of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln


class Doubled:
    """Keeps its value under another name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return instance.__dict__.get(self.name, -1)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value * 2


class Described:
    a = Doubled()

    @property
    def p(self) -> int:
        return 11


class Slotted:
    __slots__ = ("__dict__", "v")


def behind_a_descriptor(o: Any, x: torch.Tensor) -> Any:
    o.__dict__["a"] = 5
    o.__dict__["p"] = 6
    first = o.a
    o.a = x
    return first, o.a, o.p, sorted(vars(o))


def read_with_a_slot(o: Any, x: torch.Tensor) -> Any:
    o.v, o.w = x, 3
    names = sorted(vars(o))
    o.__dict__["q"] = 1
    return o.v, names, sorted(vars(o))


def under_the_name_of_a_slot(o: Any, x: torch.Tensor) -> Any:
    o.v = x
    o.__dict__["v"] = "in the dict"
    return o.v, o.__dict__["v"]


def cleared(o: Any, x: torch.Tensor) -> Any:
    o.w = x
    vars(o).clear()
    vars(o)["z"] = x + 1
    return vars(o), hasattr(o, "w"), o.z


PROGRAMS: list[tuple[type, Callable[[Any, torch.Tensor], Any]]] = [
    (Described, behind_a_descriptor),
    (Slotted, read_with_a_slot),
    (Slotted, under_the_name_of_a_slot),
    (Slotted, cleared),
    (Described, cleared),
]


@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize(("kind", "program"), PROGRAMS)
def test_instance_dicts(kind: type, program: Callable[[Any, torch.Tensor], Any], made_inside: bool) -> None:
    def function(o: Any, x: torch.Tensor) -> Any:
        owner = kind() if made_inside else o
        return program(owner, x), owner.__dict__, getattr(owner, "v", None)

    compiled = kiln.compile(function, backend="eager", options={"cache": False})
    x = torch.ones(2)
    for _ in range(2):
        assert repr(compiled(kind(), x)) == repr(function(kind(), x))
    assert kiln.report_of(compiled).eager == 0
