"""Which nodes become one kernel, and that they compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiln.loops.kernel.launches.text import kernel_program_text
from tests.fusion.check import assert_same_values, kernels, scheduled
from tests.fusion.programs import PROGRAMS

ONE_KERNEL = ("gelu_norm", "softmax", "rms_norm", "views", "bias_gradient", "transposed")


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name: str, golden: Callable[..., None]) -> None:
    golden(kernel_program_text(scheduled(PROGRAMS[name])))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 33])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, size: int) -> None:
    assert_same_values(PROGRAMS[name], {"s0": size})


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    assert len(kernels(scheduled(PROGRAMS[name]))) == 1


def test_split_reductions_are_two_kernels() -> None:
    for name in ("cross_entropy", "full_sum", "long_columns"):
        assert len(kernels(scheduled(PROGRAMS[name]))) == 2
