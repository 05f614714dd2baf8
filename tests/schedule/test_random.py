"""Random loop programs, fused, compute what their nodes compute."""

from __future__ import annotations

import pytest

from tests.schedule.check import assert_same_values
from tests.schedule.random_loops import random_program


@pytest.mark.parametrize("seed", range(40))
def test_static(seed: int) -> None:
    assert_same_values(random_program(seed))


@pytest.mark.parametrize("seed", range(40))
def test_symbolic(seed: int) -> None:
    assert_same_values(random_program(seed, symbolic=True), {"s0": (1, 2, 5, 13)[seed % 4]})
