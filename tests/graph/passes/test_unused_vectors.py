"""Singular values and eigenvalues without the vectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
from kiln.graph.passes.unused_vectors import UnusedVectors
from tests.graph.passes.graphs import check_pass, check_unchanged

MATRIX = torch.randn(3, 4, 4, dtype=torch.float64)


def test_values_alone() -> None:
    check_pass(
        UnusedVectors(),
        """
        graph(%0: f64[3, 4, 4] "x"):
            %1: (f64[3, 4], f64[3, 4, 4 | 16, 1, 4]) = aten._linalg_eigh.default(%0, "U")
            %2: f64[3, 4] = item(%1, index=0)
            return %2
        """,
        """
        graph(%0: f64[3, 4, 4] "x"):
            %1: (f64[3, 4], f64[0]) = aten._linalg_eigh.default(%0, "U", False)
            %2: f64[3, 4] = item(%1, index=0)
            return %2
        """,
        [MATRIX],
    )


def test_vectors_that_are_read() -> None:
    check_unchanged(
        UnusedVectors(),
        """
        graph(%0: f64[3, 4, 4] "x"):
            %1: (f64[3, 4], f64[3, 4, 4 | 16, 1, 4]) = aten._linalg_eigh.default(%0, "U")
            %2: f64[3, 4] = item(%1, index=0)
            %3: f64[3, 4, 4 | 16, 1, 4] = item(%1, index=1)
            return %2, %3
        """,
    )


@pytest.mark.parametrize("function", [torch.linalg.svdvals, torch.linalg.eigvalsh, lambda x: torch.linalg.cond(x, 2)])
def test_values_are_eagers_to_the_last_bit(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 32, 32)
    assert torch.equal(kiln.compile(function)(x), function(x))
