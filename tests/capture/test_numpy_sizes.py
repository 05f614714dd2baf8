"""NumPy's arrays of sizes that change are compiled once for all, in the dtypes and with the numbers of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kiln
from kiln.report.report import Report
from tests.faults.outcome import assert_same

Program = Callable[[Tensor], Any]


def causal_mask(x: Tensor) -> Tensor:
    size = x.shape[0]
    return torch.from_numpy(np.triu(np.ones((1, size, size)), k=1).astype("uint8")) == 0


def made(x: Tensor) -> Any:
    n, m = x.shape
    empty = np.empty((n, 2), np.float32)
    empty[:] = 3
    return (
        (np.zeros(x.shape), np.zeros(n, dtype=bool), np.ones((n, 2), int), empty, np.eye(n), np.eye(n, 3)),
        (np.identity(n), np.tri(n), np.tri(n, 4, -1), np.arange(m), np.arange(1, n + 1, 2), np.arange(n, dtype="f4")),
    )


def spaced(x: Tensor) -> Any:
    n, m = x.shape
    whole, open_end, back = np.linspace(0, 1, n), np.linspace(-1.5, 2, m, endpoint=False), np.linspace(3, 1, num=m)
    return whole, open_end, back, np.linspace(0, 5, n, dtype=np.float32), np.linspace(0.1, 0.7, n)


def written(x: Tensor) -> Tensor:
    weights = np.zeros((x.size(0), x.size(0)))
    weights[:, 0] = 2
    weights[1] += 1
    return torch.from_numpy(weights).float() @ x


def grids(x: Tensor) -> Any:
    rows, columns = np.arange(x.size(0), dtype=np.float32), np.arange(x.size(1))
    first, second = np.meshgrid(columns, rows)
    first[0] = 7
    return first, second, np.stack(np.meshgrid(rows, rows, indexing="ij"), 0).reshape(2, -1)


def positions(x: Tensor) -> Tensor:
    omega = np.arange(x.size(1) // 2, dtype=np.float64)
    omega /= x.size(1) / 2
    out = np.einsum("m,d->md", np.arange(x.size(0)).reshape(-1), 1 / 10000**omega)
    return torch.from_numpy(np.concatenate([np.sin(out), np.cos(out)], axis=1)).float()


def check(program: Program, *, sizes: tuple[int, ...] = (3, 5, 8, 13)) -> Report:
    compiled: Any = kiln.compile(program, options={"cache": False})
    for size in sizes:
        x = torch.randn(size, size + 1)
        assert_same(compiled(x), program(x))
    report: Report = compiled.report()
    return report


def turned(x: Tensor) -> Tensor:
    return x[np.arange(x.size(0))[::-1].copy()]


@pytest.mark.parametrize("program", [causal_mask, made, spaced, written, grids, positions, turned])
def test_one_compile_for_all_sizes(program: Program) -> None:
    report = check(program)
    assert (report.compiles, report.breaks, report.eager) == (2, [], 0), str(report)


def listed(x: Tensor) -> list[Tensor]:
    return [x * rate for rate in np.linspace(0, 0.1, x.size(0)).tolist()]


def filled_in_turns(x: Tensor) -> Tensor:
    mask = np.zeros((x.size(0), x.size(0)))
    for row in range(x.size(0)):
        mask[row, : row + 1] = 1
    return torch.from_numpy(mask).float() @ x


@pytest.mark.parametrize("program", [listed, filled_in_turns])
def test_what_only_numpy_does_has_a_variant_for_each_size(program: Program) -> None:
    report = check(program, sizes=(3, 5, 8))
    assert (report.compiles, report.breaks, report.eager) == (3, [], 0), str(report)


def test_few_elements() -> None:
    """NumPy's rules for no or one step are others: these sizes have a variant each."""
    report = check(lambda x: (np.linspace(0, 1, x.size(0) - 2), np.zeros((x.size(0) - 3, 2))), sizes=(6, 5, 4, 3))
    assert report.breaks == [] and report.eager == 0
