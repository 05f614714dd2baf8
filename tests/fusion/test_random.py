"""Random loop programs, fused, compute what their nodes compute."""

from __future__ import annotations

import pytest

from tests.fusion.check import assert_same_values
from tests.fusion.random_loops import random_program


@pytest.mark.parametrize("seed", range(60))
def test_static(seed: int) -> None:
    assert_same_values(random_program(seed))


@pytest.mark.parametrize("seed", range(60))
def test_symbolic(seed: int) -> None:
    assert_same_values(random_program(seed, symbolic=True), {"s0": (1, 2, 5, 13)[seed % 4]})


@pytest.mark.parametrize(("seed", "nodes"), [(1020, 16), (1053, 16), (2201, 8), (2233, 8)])
def test_digits_of_rows(seed: int, nodes: int) -> None:
    """Seeds that once read a row at the wrong offset."""
    assert_same_values(random_program(seed, nodes=nodes))
    assert_same_values(random_program(seed, nodes=nodes, symbolic=True), {"s0": 5})
