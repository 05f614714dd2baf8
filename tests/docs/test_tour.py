"""docs/tour.md is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kiln.support.target import host_cpu

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    host_cpu().vector_bytes != 64 or sys.version_info[:2] != (3, 11), reason="the page shows AVX-512 and CPython 3.11"
)
def test_the_tour_is_true() -> None:
    done = subprocess.run(
        [sys.executable, "tools/tour.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        done.stderr or "docs/tour.md is behind the code: run python tools/tour.py and review it"
    )
