"""Attributes of a `threading.local`: those of the thread that calls."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

SCOPE = threading.local()


class Settings(threading.local):
    step = 3

    def __init__(self, scale: int = 1) -> None:
        self.scale = scale

    @property
    def doubled(self) -> int:
        return self.scale * 2


SETTINGS = Settings(5)


def scaled(x: Tensor) -> Any:
    return x * SCOPE.scale if hasattr(SCOPE, "scale") else x


def counted(x: Tensor) -> Any:
    SCOPE.count = getattr(SCOPE, "count", 0) + 1
    SETTINGS.scale += SETTINGS.step
    return x + SCOPE.count, SETTINGS.doubled


def nested(x: Tensor) -> Any:
    if not hasattr(SCOPE, "stack"):
        SCOPE.stack = []
    SCOPE.stack.append(1)
    try:
        return x + len(SCOPE.stack)
    finally:
        SCOPE.stack.pop()


def deleted(x: Tensor) -> Any:
    SCOPE.kept = x
    y = SCOPE.kept + 1
    del SCOPE.kept
    return y, hasattr(SCOPE, "kept")


@pytest.mark.parametrize("program", [scaled, counted, nested, deleted])
def test_attributes(program: Any) -> None:
    def results(function: Any) -> list[str]:
        SCOPE.__dict__.clear()
        SETTINGS.__dict__.update(scale=5)
        return [repr(function(torch.ones(size))) for size in (2, 2, 3)]

    expected = results(program)
    assert results(kiln.compile(program, fullgraph=True)) == expected


def test_each_thread_has_its_own() -> None:
    SCOPE.__dict__.clear()
    SCOPE.scale = 2
    compiled = kiln.compile(scaled, fullgraph=True)
    seen: list[float] = []

    def other() -> None:
        seen.append(compiled(torch.ones(1)).item())
        SCOPE.scale = 7
        seen.append(compiled(torch.ones(1)).item())

    seen.append(compiled(torch.ones(1)).item())
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    seen.append(compiled(torch.ones(1)).item())
    assert seen == [2, 1, 7, 2]


class Backend:
    """As tensorly keeps its own."""

    local = threading.local()
    default = 2

    @classmethod
    def current(cls) -> int:
        found: int = cls.local.__dict__.get("backend", cls.default)
        return found


def test_the_dict_is_that_of_the_thread() -> None:
    def scaled_by_backend(x: Tensor) -> Tensor:
        return x * Backend.current()

    def counted_in_dict(x: Tensor) -> Any:
        own = Backend.local.__dict__
        own["count"] = own.get("count", 0) + 1
        return x + Backend.local.count, sorted(vars(Backend.local)), len(own), own.pop("gone", None)

    x = torch.ones(2)
    fast, count = (
        kiln.compile(f, options={"cache": False}, fullgraph=True) for f in (scaled_by_backend, counted_in_dict)
    )
    assert fast(x).tolist() == [2, 2]
    Backend.local.backend = 5
    assert fast(x).tolist() == [5, 5]
    assert [count(x)[0].tolist()[0] for _ in range(3)] == [2, 3, 4]
    assert Backend.local.__dict__ == {"backend": 5, "count": 3}
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend([fast(x).tolist(), *count(x)[1:3]]))
    thread.start()
    thread.join()
    assert found == [[2, 2], ["count"], 1]
    del Backend.local.backend
    assert fast(x).tolist() == [2, 2]
