"""The kernels that the C++ tests write by hand, as Triton kernels against the loop interpreter."""

from __future__ import annotations

import pytest
import torch

from kiln.loops.codegen.dialect import UnsupportedInKernel
from tests.codegen.native import Case
from tests.codegen.test_cpp_kernels import all_cases
from tests.codegen_triton.check import Runner, check_parsed

BACKWARDS = "large"
"""Reads a row in another order, which schedules for GPUs never do."""


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    found: dict[str, Case] = {}
    for case in all_cases():
        name, count = case.kernel.name, 1
        while f"{name}_{count}" in found:
            count += 1
        found[f"{name}_{count}"] = case
    return found


CASES = cases()


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(BACKWARDS)])
def test_kernel(name: str, runner: Runner) -> None:
    case = CASES[name]
    check_parsed(runner, case.kernel, case.tensors, case.sizes, 1e-5)


def test_a_row_is_read_where_it_was_made(runner: Runner) -> None:
    case = CASES[f"{BACKWARDS}_1"]
    with pytest.raises(UnsupportedInKernel):
        check_parsed(runner, case.kernel, case.tensors, case.sizes, 1e-5)
