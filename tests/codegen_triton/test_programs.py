"""Programs of the schedule's tests as Triton kernels: the values they compute."""

from __future__ import annotations

import pytest

from tests.codegen_triton.check import Runner, assert_same_values
from tests.schedule.programs import PROGRAMS
from tests.schedule.test_single import PROGRAMS as SINGLE


@pytest.mark.parametrize("name", SINGLE)
def test_single_nodes(name: str, runner: Runner) -> None:
    assert_same_values(runner, SINGLE[name], {"s0": 7})


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused(name: str, runner: Runner) -> None:
    assert_same_values(runner, PROGRAMS[name], {"s0": 7})
