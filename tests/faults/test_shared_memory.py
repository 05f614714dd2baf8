"""Ops that write to memory which they read: eager refuses, or its result depends on its order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager

PROGRAMS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a row of out": lambda a, b: torch.add(a, b[1], out=b),
    "shifted out": lambda a, b: torch.add(a[1:], 1, out=a[:-1]),
    "transposed out": lambda a, b: torch.sin(a.t(), out=a),
    "out of where": lambda a, b: torch.where(a > 0, a, b[0], out=b),
    "out of cat": lambda a, b: torch.cat([a[:1], b[:2]], out=a),
    "out of a sum": lambda a, b: torch.sum(a, 0, out=a[0]),
    "out itself": lambda a, b: torch.add(a, b, out=b),
    "out elsewhere": lambda a, b: torch.add(a[:1], 1, out=a[1:2]),
    "a column in place": lambda a, b: a.sub_(a[:, 0:1]),
    "another column in place": lambda a, b: a[:, 0].sub_(a[:, 1]),
    "a list": lambda a, b: torch._foreach_add_([a], [a.t()]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_that_is_read_and_written(name: str) -> None:
    program = PROGRAMS[name]
    assert_like_eager(kiln.compile(program), program, torch.arange(9.0).view(3, 3), torch.arange(9.0, 0, -1).view(3, 3))


def test_columns_stay_in_the_graph() -> None:
    def program(a: Tensor) -> Tensor:
        return a[:, 0].sub_(a[:, 1])

    assert_like_eager(kiln.compile(program, fullgraph=True), program, torch.arange(9.0).view(3, 3))
