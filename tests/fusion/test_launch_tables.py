"""Launches of one kernel become one launch over a table, and no result changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.loops.kernel.launches.text import kernel_program_text
from kiln.support.target import Target
from tests.fusion.check import TARGET, assert_same_values, scheduled
from tests.fusion.random_loops import random_program
from tests.fusion.test_far_apart import momentum_steps

GPU = Target(device="cuda", capability=(9, 0), multiprocessors=132)
USED_BETWEEN = """
loops used_between
    x: f32[8] = input 0
    y: f32[8] = input 1
    a: f32[8] = pointwise (i0: 8): exp(load x[i0])
    b: f32[8] = pointwise (i0: 8): neg(load a[7 - i0])
    c: f32[8] = pointwise (i0: 8): exp(load y[i0])
    return a, b, c
"""


def test_text(golden: Callable[..., None]) -> None:
    golden(kernel_program_text(scheduled(momentum_steps(10), GPU)))


@pytest.mark.parametrize("target", [GPU, TARGET])
@pytest.mark.parametrize("count", [14, 140, 700])
def test_one_launch_for_all_sizes(count: int, target: Target) -> None:
    """A tensor of one element has a kernel of its own."""
    assert [step.rows for step in scheduled(momentum_steps(count), target).steps] == [count // 7, count - count // 7]


@pytest.mark.parametrize("target", [GPU, TARGET])
def test_what_is_needed_in_between_stays(target: Target) -> None:
    """`b` needs `a`, so `a` does not move behind it; `c` moves up to `a`."""
    made = assert_same_values(USED_BETWEEN, made=scheduled(USED_BETWEEN, target))
    assert [step.rows for step in made.steps] == [2, 1]


@pytest.mark.parametrize("count", [14, 150])
def test_values(count: int) -> None:
    assert_same_values(momentum_steps(count), made=scheduled(momentum_steps(count), GPU))


@pytest.mark.parametrize("seed", range(60))
def test_values_of_random_programs(seed: int) -> None:
    program = random_program(seed, nodes=12)
    assert_same_values(program, made=scheduled(program, GPU))
