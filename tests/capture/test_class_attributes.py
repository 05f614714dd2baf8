"""Attributes that a program sets on classes from outside: read back at once, and written behind the region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln


class Base:
    count = 1
    items: list[int] = []
    single: Base | None = None

    def get(self) -> int:
        return self.count

    @classmethod
    def made(cls) -> Base:
        cls.count += 1
        return cls()

    @property
    def tenfold(self) -> int:
        return type(self).count * 10


class Middle(Base):
    pass


class Own(Middle):
    count = 7


def reset() -> None:
    Base.count, Base.items, Base.single = 1, [], None
    for cls, name in ((Middle, "count"), (Base, "late")):
        if name in vars(cls):
            delattr(cls, name)


def inherited(x: torch.Tensor) -> Any:
    before = Middle().get()
    Base.count = before + 2
    m = Middle()
    found = m.count, m.get(), Own().count, Middle.count, hasattr(Base, "lacking")
    Base.late = x * 2  # type: ignore[attr-defined]
    late = m.late  # type: ignore[attr-defined]
    Middle.count = 5
    m.count += 1
    return x + Base.count, found, late, m.count, Middle.count, Own.count


def methods(x: torch.Tensor) -> Any:
    a, b = Base.made(), Base.made()
    return x * Base.count, a.tenfold, b.count


def containers(x: torch.Tensor) -> Any:
    Base.items.append(1)
    Base.items = [*Base.items, 3]
    Base.items.append(4)
    return x * len(Base.items), list(Base.items)


def one_instance(x: torch.Tensor) -> Any:
    if Base.single is None:
        Base.single = Base()
        Base.single.scale = 3  # type: ignore[attr-defined]
    return x * Base.single.scale, Base.single is Base.single  # type: ignore[attr-defined]


def temporary_hooks(x: torch.Tensor) -> Any:
    """`RemovableHandle` counts its instances in an attribute of the class."""
    layer, seen = torch.nn.Identity(), []
    handle = layer.register_forward_hook(lambda module, given, result: seen.append(result.shape[0]))
    y = layer(x)
    handle.remove()
    return y, seen, layer(y)


@pytest.mark.parametrize("program", [inherited, methods, containers, one_instance, temporary_hooks])
def test_class_attributes(program: Callable[[torch.Tensor], Any]) -> None:
    x = torch.ones(2)
    reset()
    expected = [program(x) for _ in range(3)]
    left = Base.count, list(Base.items), Base.single is None
    reset()
    compiled = kiln.compile(program, backend="eager", fullgraph=True, options={"cache": False})
    torch.testing.assert_close([compiled(x) for _ in range(3)], expected)
    assert (Base.count, list(Base.items), Base.single is None) == left


@pytest.mark.filterwarnings("ignore")
def test_a_side_that_sets_one_is_not_taken_beside_the_other() -> None:
    def f(x: torch.Tensor) -> Any:
        if x.sum() > 0:
            Base.count += 1
            y = x * 2
        else:
            y = x * 3
        return y, Base.count

    reset()
    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    counts = [compiled(x)[1] for x in (torch.ones(2), -torch.ones(2), torch.ones(2))]
    assert counts == [2, 2, 3]


@pytest.mark.filterwarnings("ignore")
def test_methods_and_special_names_break() -> None:
    def f(x: torch.Tensor) -> Any:
        old, Base.get = Base.get, lambda self: 40  # type: ignore[method-assign]
        found = Base().get()
        Base.get = old  # type: ignore[method-assign]
        return x, found, Base().get()

    reset()
    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    for _ in range(2):
        assert compiled(torch.ones(2))[1:] == (40, 1)
