"""docs/benchmarks.md, its plots and the table of README.md are what the results say."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    f"matplotlib=={version('matplotlib')}" not in (ROOT / "requirements.txt").read_text(),
    reason="another version of matplotlib draws the plots otherwise",
)
def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "tools/benchmarks.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr or f"behind the results, run python tools/benchmarks.py:\n{done.stdout}"
