"""Reads that are interpreted once: attributes through a `__getattribute__` of the program, fields of dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch


class Settings:
    """Redirects one name, so each read runs Python code."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.fresh = None
        self.names = {"size": "scale"}

    def __getattribute__(self, name: str) -> Any:
        if name == "fresh":
            return [1.0]
        names = object.__getattribute__(self, "names")
        return object.__getattribute__(self, names.get(name, name))


def test_a_read_is_interpreted_once(same: Any, lab: Any) -> None:
    def f(x: torch.Tensor, settings: Settings) -> torch.Tensor:
        return x * settings.size + settings.size

    def g(x: torch.Tensor, settings: Settings) -> torch.Tensor:
        return x * settings.size + settings.scale

    same(f, torch.ones(2), Settings())
    same(g, torch.ones(2), Settings())
    assert lab.captures[0].steps < lab.captures[1].steps


def test_a_read_after_a_write_is_interpreted(same: Any) -> None:
    def f(x: torch.Tensor, settings: Settings) -> torch.Tensor:
        y = x * settings.size
        settings.scale = 5.0
        y = y + settings.size
        settings.scale = 2.0
        return y

    same(f, torch.ones(2), Settings())


def test_what_a_read_makes_is_new_each_time(same: Any) -> None:
    def f(x: torch.Tensor, settings: Settings) -> tuple[torch.Tensor, bool]:
        one, other = settings.fresh, settings.fresh
        one.append(2.0)
        return x * len(one) + len(other), one is other

    same(f, torch.ones(2), Settings())


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    y: float = 1.0


def test_fields_of_a_dataclass(same: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[str], list[str]]:
        point = Point(x)
        values = [getattr(point, field.name) for field in dataclasses.fields(point)]
        return values[0] * values[1], [field.name for field in dataclasses.fields(Point)], [type(point).__name__]

    same(f, torch.ones(2))


def test_fields_of_what_is_no_dataclass(same: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            dataclasses.fields(3)  # type: ignore[arg-type]
        except TypeError:
            return x * 2
        return x

    same(f, torch.ones(2))
