"""Objects as keys count by identity: another object may take the place of one, but not that of another key."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln

X = torch.ones(2, 4)
A, B, C = (nn.Linear(4, 4) for _ in range(3))
FACTORS = {A: 2.0, B: 5.0}
PAIRS = {(A, 1): 2.0, (B, 1): 3.0}
CHOSEN = {A}
WEAK: weakref.WeakKeyDictionary[nn.Module, float] = weakref.WeakKeyDictionary({A: 4.0, B: 6.0})
WEAK_SET = weakref.WeakSet([A])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


OVER_MODULES: dict[str, Callable[[Block, Tensor], Tensor]] = {
    "the first parameter": lambda m, x: m.first(x) * next(m.parameters()).dtype.itemsize,
    "parameters by name": lambda m, x: m.first(x) * len(dict(m.named_parameters())),
    "all modules": lambda m, x: m.first(x) * len(list(m.modules())),
    "children": lambda m, x: m.first(x) * len(list(m.children())),
    "modules as keys": lambda m, x: m.first(x) * {m.first: 2, m.second: 3}[m.second],
}


@pytest.mark.parametrize("name", OVER_MODULES)
def test_equal_modules_share_one_compile(name: str) -> None:
    program = OVER_MODULES[name]
    compiled = kiln.compile(program, fullgraph=True)
    for _ in range(3):
        block = Block()
        torch.testing.assert_close(compiled(block, X), program(block, X))
    report = compiled.report()
    assert report.compiles == 1 and not report.unsaved, report


def different(*modules: nn.Module) -> int:
    seen = set()
    for module in modules:
        seen.add(module)
    return len(seen)


LOOKED_UP: dict[str, tuple[Callable[..., Any], list[tuple[nn.Module, ...]]]] = {
    "a set from outside": (lambda m: X * (2 if m in CHOSEN else 3), [(C,), (A,), (B,), (A,)]),
    "a dict from outside": (lambda m: X * FACTORS.get(m, 7.0), [(C,), (A,), (B,), (C,)]),
    "a frozenset as a default": (lambda m, s=frozenset([A, B]): X * (2 if m in s else 3), [(A,), (C,), (B,)]),
    "tuples in a frozenset": (lambda m, s=frozenset([(A, 1)]): X * (2 if (m, 1) in s else 3), [(B,), (A,), (C,)]),
    "tuples in a dict": (lambda m: X * PAIRS.get((m, 1), 9.0), [(A,), (B,), (C,)]),
    "weak keys": (lambda m: X * WEAK.get(m, 99), [(A,), (B,), (C,)]),
    "a weak set": (lambda m: X * (2 if m in WEAK_SET else 3), [(B,), (A,), (C,)]),
    "a set made inside": (lambda *m: X * different(*m), [(A, B, C), (A, B, A), (C, C, C), (B, C, A)]),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_another_object_is_not_taken_for_a_key(name: str) -> None:
    program, calls = LOOKED_UP[name]
    compiled = kiln.compile(program)
    for call in calls:
        torch.testing.assert_close(compiled(*call), program(*call), rtol=0, atol=0)
    assert not compiled.report().eager
