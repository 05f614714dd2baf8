"""Copies of objects whose class has a `__getattribute__` of its own, such as a model's config: no graph break."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

import kiln
from kiln.tensor.content import element_view, elements

READ: list[str] = []


class Renames:
    names = {"hidden_size": "d_model"}

    def __init__(self) -> None:
        self.d_model, self.layers = 3, [1, 2]

    def __getattribute__(self, key: str) -> Any:
        READ.append(key)
        names = super().__getattribute__("names")
        return super().__getattribute__(names.get(key, key))


def shallow(config: Renames, x: Tensor) -> tuple[Tensor, bool, int]:
    other = copy.copy(config)
    other.d_model = 5
    return x * other.hidden_size + config.hidden_size, other.layers is config.layers, len(other.__dict__)


def deep(config: Renames, x: Tensor) -> tuple[Tensor, bool, list[int]]:
    other = copy.deepcopy(config)
    return x * other.hidden_size, other.layers is config.layers, other.layers


def test_copies_of_objects_with_a_getattribute() -> None:
    for function in (shallow, deep):
        compiled = kiln.compile(function, backend="eager", fullgraph=True)
        for x in (torch.ones(2), torch.zeros(2)):
            READ.clear()
            expected = function(Renames(), x)
            reads = list(READ)
            READ.clear()
            found = compiled(Renames(), x)
            assert READ[-len(reads) :] == reads
            torch.testing.assert_close(found[0], expected[0])
            assert found[1:] == expected[1:]


def test_a_tensor_whose_elements_were_read_can_be_resized() -> None:
    tensor, empty = torch.arange(3, dtype=torch.int16), torch.empty(0)
    assert elements(tensor) == b"\x00\x00\x01\x00\x02\x00" and elements(empty) == b""
    assert bytes(element_view(torch.arange(2, dtype=torch.int8).expand(2, 2))) == b"\x00\x01\x00\x01"
    assert tensor.resize_(100).shape == (100,) and empty.resize_(4).shape == (4,)


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int = 4
    scale: float = 0.5
    sizes: tuple[object, ...] = ()


def test_numbers_that_change_are_copied() -> None:
    def program(x: torch.Tensor, steps: int, scale: float) -> tuple[object, ...]:
        settings = dataclasses.replace(Settings(), steps=steps, scale=scale, sizes=(steps, [steps]))
        return x * steps, dataclasses.asdict(settings), copy.deepcopy([steps, {"a": scale}]), copy.copy(steps)

    compiled: Any = kiln.compile(program, fullgraph=True)
    x = torch.ones(2)
    for number in range(1, 6):
        found, expected = compiled(x, number, number / 4), program(x, number, number / 4)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]  # type: ignore[arg-type]
    assert compiled.report().compiles == 2


def test_views_of_dicts_cannot_be_copied() -> None:
    def program(views: list[Any]) -> list[str]:
        found = []
        for view in views:
            for copying in (copy.copy, copy.deepcopy):
                try:
                    copying(view)
                except TypeError as error:
                    found.append(str(error))
        return found

    views = [{1: 2}.keys(), {1: 2}.values(), {1: 2}.items()]
    assert kiln.compile(program)(views) == program(views)
