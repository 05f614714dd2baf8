"""`kiln.compile` keeps the types of what it compiles: mypy --strict and pyright accept a typed program.

pyright is not a requirement of the tests: where it is not installed its test is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child import search_path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TYPED, WRONG = HERE / "typed_program.py", HERE / "wrong_program.py"
FIRST_MISTAKE = 1 + WRONG.read_text().splitlines().index('scaled(x, "three")')
MISTAKES = set(range(FIRST_MISTAKE, FIRST_MISTAKE + 5))


def mypy(program: Path) -> subprocess.CompletedProcess[str]:
    """With the project's settings, whose cache holds torch; the programs set the rest of --strict themselves."""
    return subprocess.run([sys.executable, "-m", "mypy", str(program)], cwd=ROOT, capture_output=True, text=True)


def test_mypy() -> None:
    pytest.importorskip("mypy")
    accepted = mypy(TYPED)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    refused = mypy(WRONG)
    assert {int(line) for line in re.findall(r":(\d+): error", refused.stdout)} == MISTAKES, refused.stdout


def test_pyright() -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    command = [pyright, "--pythonpath", sys.executable]
    accepted = subprocess.run([*command, str(TYPED)], cwd=ROOT, capture_output=True, text=True)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    refused = subprocess.run([*command, str(WRONG)], cwd=ROOT, capture_output=True, text=True)
    assert {int(line) for line in re.findall(r":(\d+):\d+ - error", refused.stdout)} == MISTAKES, refused.stdout


def test_the_typed_program_runs() -> None:
    environment = {**os.environ, "PYTHONPATH": search_path()}
    done = subprocess.run([sys.executable, str(TYPED)], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
