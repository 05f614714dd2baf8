"""Compiled programs on several ranks equal eager's, in processes of one group; the cases are in `*_cases.py`."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.ranks import run_cases

CASES = tuple(f"tests.distributed.{name}_cases" for name in ("shared", "collective", "wrapper", "dtensor", "spread"))


def assert_all_right(problems: dict[str, str]) -> None:
    assert problems and not any(problems.values()), "\n".join(f"{case}: {text}" for case, text in problems.items())


def test_two_ranks() -> None:
    assert_all_right(run_cases(*CASES))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_more_of_ddp(size: int) -> None:
    assert_all_right(run_cases("tests.distributed.variant_cases", size=size))


@pytest.mark.slow
def test_four_ranks() -> None:
    assert_all_right(run_cases(*CASES, size=4))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("names", ["wrapper,variant", "dtensor", "collective"])
def test_two_gpus(names: str) -> None:
    modules = [f"tests.distributed.{name}_cases" for name in names.split(",")]
    assert_all_right(run_cases(*modules, backend="nccl"))
