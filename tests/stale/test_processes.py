"""The search for stale code between processes: a sample of it, and whether it finds what it is for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.stale.processes import ProcessSweep, in_a_fork
from tests.stale.programs import PROGRAMS


def quiet(subject: str, program: str) -> None:
    """Takes a note of the sweep."""


def test_what_a_process_answers_and_how_it_ends() -> None:
    assert in_a_fork(lambda: "stale") == "stale"
    assert in_a_fork(lambda: "") == ""
    assert "KeyError" not in in_a_fork(lambda: {}["missing"])


def findings(folder: Path, numbers: Iterable[int]) -> list[str]:
    sweep = ProcessSweep(folder)
    return [found.detail for number in numbers for found in sweep.run(number, quiet) if found.kind == "stale"]


def test_a_sample(tmp_path: Path) -> None:
    """One program, first as it is."""
    assert findings(tmp_path, range(0, 3 * len(PROGRAMS), len(PROGRAMS))) == []


@pytest.mark.slow
def test_a_larger_sample(tmp_path: Path) -> None:
    assert findings(tmp_path, range(1000)) == []
