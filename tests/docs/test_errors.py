"""Codes: each says what, why and what to try, and docs/errors.md lists them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_true() -> None:
    """In a fresh process, without classes that tests define; it loads all modules, of optional packages, too."""
    pytest.importorskip("halide")
    command = [sys.executable, "tools/errors.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "docs/errors.md is behind the code: run python tools/errors.py"


def test_codes_stand_in_python_only() -> None:
    """Native code gets its messages from Python: codes written there would be in no table."""
    for path in sorted((ROOT / "csrc").rglob("*")):
        assert path.is_dir() or "KILN4" not in path.read_text(), path
