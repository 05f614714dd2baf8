"""Compiled programs on several ranks equal eager's, in processes of one gloo group; the cases are in `*_cases.py`."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import run_cases

CASES = tuple(f"tests.distributed.{name}_cases" for name in ("shared", "collective", "wrapper", "dtensor"))


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
