"""`out` and `requires_grad` beside numbers that have become symbols: functions that take these had left both out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln

WRITTEN: dict[str, Callable[[Tensor, int], Tensor]] = {
    "linspace": lambda x, n: torch.linspace(0, 2.5, x.shape[0], out=x[0]),
    "var": lambda x, n: torch.var(x, 0, correction=n, out=x[0]),
    "std": lambda x, n: torch.std(x, 0, correction=n, out=x[0]),
    "vector_norm": lambda x, n: torch.linalg.vector_norm(x, n, 0, out=x[0]),
    "norm": lambda x, n: torch.norm(x, n, 0, out=x[0]),
    "normalize": lambda x, n: F.normalize(x, n, out=x),
    "normalize, by position": lambda x, n: F.normalize(x, n, 1, 1e-12, x),
    "round": lambda x, n: torch.round(x / 7, decimals=n, out=x),
    "pow": lambda x, n: torch.pow(x / 9, n, out=x),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", WRITTEN)
def test_out_is_written(name: str, dynamic: bool | None) -> None:
    program = WRITTEN[name]
    compiled = kiln.compile(program, dynamic=dynamic)
    for size, number in ((6, 3), (7, 4), (9, 5), (8, 3)):
        found, expected = [torch.arange(float(size * size)).view(size, size) for _ in range(2)]
        torch.testing.assert_close(compiled(found, number), program(expected, number))
        torch.testing.assert_close(found, expected)


def test_leaves() -> None:
    def program(n: int) -> tuple[Tensor, ...]:
        return torch.linspace(0, 1, n, requires_grad=True), torch.normal(0.0, n * 1.5, (3,), requires_grad=True)

    compiled = kiln.compile(program)
    for n in (3, 4, 5):
        for leaf in compiled(n):
            assert leaf.is_leaf and leaf.requires_grad
