"""Variants on disk: what one session compiled, another one loads and runs without a compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import kiln
from kiln.api.compile import session_of
from kiln.report import Report
from tests.persist.programs import PROGRAMS, run

ROOT = Path(__file__).resolve().parents[2]


def compiled_run(name: str, folder: Path) -> tuple[list[Any], Report, list[str]]:
    """What a fresh session gives for a program, its report, the stages it went through."""
    function, args, kwargs = PROGRAMS[name]()
    compiled = kiln.compile(function, options={"cache": True, "cache_dir": str(folder)})
    stages: list[str] = []
    session_of(compiled).events.listen(lambda event: stages.append(event.stage))
    result = run(compiled, args, kwargs)
    return result, kiln.report_of(compiled), stages


def assert_same(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype and torch.equal(one, other), (one, other)
        else:
            assert one == other


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_session_compiles_nothing(name: str, tmp_path: Path) -> None:
    first, report, _ = compiled_run(name, tmp_path)
    assert report.unsaved == [] and report.compiles > 0 and report.eager == 0
    second, again, stages = compiled_run(name, tmp_path)
    assert_same(second, first)
    assert (again.compiles, again.loaded, again.eager) == (0, report.compiles, 0)
    assert "capture" not in stages and "lowering" not in stages
    assert [one.code for one in again.breaks] == [one.code for one in report.breaks]
    assert (again.regions, again.guards) == (report.regions, report.guards)
    if name != "differentiable":  # a backward is counted where it is compiled
        assert again.kernels == report.kernels
