"""Codes: each says what, why and what to try, and docs/errors.md lists them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECK = """
import sys
sys.path.insert(0, "tools")
from errors import import_all
import_all()
from kiln.support.errors import ERRORS
for code, error in ERRORS.items():
    missing = [name for name in ("what", "why", "try_") if not getattr(error, name)]
    assert not missing, (code, missing)
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """In a fresh process, without classes that tests define."""
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_page_is_true() -> None:
    done = run("tools/errors.py", "--check")
    assert done.returncode == 0, done.stderr or "docs/errors.md is behind the code: run python tools/errors.py"


def test_every_error_says_what_to_try() -> None:
    done = run("-c", CHECK)
    assert done.returncode == 0, done.stderr


def test_codes_stand_in_python_only() -> None:
    """Native code gets its messages from Python: codes written there would be in no table."""
    for path in sorted((ROOT / "csrc").rglob("*")):
        assert path.is_dir() or "KILN4" not in path.read_text(), path
