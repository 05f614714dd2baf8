"""Programs of the schedule's tests as Triton kernels: the values they compute."""

from __future__ import annotations

import pytest

from tests.codegen_triton.check import GPU, Runner, assert_same_values
from tests.fusion.check import kernels, scheduled
from tests.fusion.programs import PROGRAMS
from tests.fusion.random_loops import random_program
from tests.fusion.test_single import PROGRAMS as SINGLE


@pytest.mark.parametrize("name", SINGLE)
def test_single_nodes(name: str, runner: Runner) -> None:
    assert_same_values(runner, SINGLE[name], {"s0": 7})


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused(name: str, runner: Runner) -> None:
    assert_same_values(runner, PROGRAMS[name], {"s0": 7})


@pytest.mark.parametrize("name", ["gelu_norm", "softmax", "rms_norm", "views", "bias_gradient", "transposed"])
def test_one_kernel(name: str) -> None:
    assert len(kernels(scheduled(PROGRAMS[name], GPU))) == 1


@pytest.mark.parametrize("seed", range(12))
def test_random(seed: int, runner: Runner) -> None:
    assert_same_values(runner, random_program(seed))


@pytest.mark.parametrize("seed", range(12, 18))
def test_random_symbolic(seed: int, runner: Runner) -> None:
    assert_same_values(runner, random_program(seed, symbolic=True), {"s0": (1, 2, 5, 13)[seed % 4]})


@pytest.mark.parametrize("seed", [111, pytest.param(165, marks=pytest.mark.slow)])
def test_sums_of_many_columns_are_not_kept(seed: int, runner: Runner) -> None:
    """Running sums per point of an axis of unknown size do not fit into registers."""
    assert_same_values(runner, random_program(seed, symbolic=seed % 3 == 0), {"s0": 5})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_more_random(seed: int, runner: Runner) -> None:
    assert_same_values(runner, random_program(seed, symbolic=seed % 3 == 0), {"s0": (1, 2, 5, 13)[seed % 4]})
