"""`inspect.signature` inside: one graph, and a new one where the answer changes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

import kiln


def described(x: Tensor, taker: Any) -> tuple[Tensor, list[str]]:
    parameters = inspect.signature(taker).parameters
    return x * len(parameters), list(parameters)


class Taker:
    def __call__(self, a: int, b: int = 2, *, c: int = 3) -> int:
        return a + b + c


def test_of_what_can_be_called() -> None:
    taker, module = Taker(), nn.Linear(2, 2)
    for each in (taker, taker.__call__, module, module.forward, nn.ReLU, lambda a, b: a):
        compiled = kiln.compile(described, options={"cache": False}, fullgraph=True)
        found, expected = compiled(torch.ones(1), each), described(torch.ones(1), each)
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]


def test_of_an_object_whose_class_or_signature_changes() -> None:
    class Own(Taker):
        pass

    taker = Own()
    compiled = kiln.compile(described, options={"cache": False})
    assert compiled(torch.ones(1), taker)[1] == ["a", "b", "c"]
    Own.__call__ = lambda self, z: z  # type: ignore[method-assign,assignment,misc]
    assert compiled(torch.ones(1), taker)[1] == ["z"]
    taker.__signature__ = inspect.signature(lambda: 0)  # type: ignore[attr-defined]
    assert compiled(torch.ones(1), taker)[1] == []
