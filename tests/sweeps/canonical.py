"""Values as plain data that can be compared: contents, classes, order, and which objects are the same.

x = [1]; canonical([x, x])  =>  ["list", ["list", ["int", 1]], ["same", 1]]
"""

from __future__ import annotations

import math
from typing import Any

import torch

Canonical = Any
PLAIN = (int, float, complex, str, bytes, bool, type(None))


def canonical(value: Any) -> Canonical:
    return _Walk().of(value)


class _Walk:
    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.kept: list[Any] = []

    def of(self, value: Any) -> Canonical:
        if type(value) in PLAIN:
            return [type(value).__name__, value]
        if id(value) in self.numbers:
            return ["same", self.numbers[id(value)]]
        if not isinstance(value, tuple | frozenset | torch.Size):
            self.numbers[id(value)] = len(self.numbers)
            self.kept.append(value)
        name = type(value).__name__
        if isinstance(value, torch.Tensor):
            return ["tensor", str(value.dtype), list(value.shape), value.requires_grad, value.detach().tolist()]
        if isinstance(value, list | tuple):
            return [name, *[self.of(item) for item in value]]
        if isinstance(value, dict):
            return [name, *[[self.of(key), self.of(item)] for key, item in value.items()]]
        if isinstance(value, set | frozenset):
            return [name, *sorted(map(repr, value))]
        if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
            return ["code", value.__qualname__]
        if hasattr(value, "__dict__"):
            return [name, *[[key, self.of(item)] for key, item in vars(value).items()]]
        return [name]


def difference(eager: Canonical, ours: Canonical, path: str = "") -> str | None:
    """The first place at which two canonical values differ."""
    if isinstance(eager, list) and isinstance(ours, list):
        if len(eager) == len(ours):
            for n, (left, right) in enumerate(zip(eager, ours, strict=True)):
                if (found := difference(left, right, f"{path}.{n}")) is not None:
                    return found
            return None
    elif type(eager) is type(ours) and (eager == ours or _close(eager, ours)):
        return None
    return f"{path}: {str(ours)[:160]} instead of {str(eager)[:160]}"


def _close(left: Any, right: Any) -> bool:
    if isinstance(left, float):
        return math.isclose(left, right, rel_tol=1e-5, abs_tol=1e-6) or (left != left and right != right)
    return False
