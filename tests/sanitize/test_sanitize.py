"""tools/sanitize reports a kernel that reads outside of its tensor; the kernels of every feature stay inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


READS_OUTSIDE = "tests/sanitize/reads_outside.py"


def sanitized(test: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "tools/sanitize", test],
        cwd=ROOT, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def has_sanitizers() -> bool:
    if shutil.which("g++") is None:
        return False
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    return "/" in found.stdout


pytestmark = pytest.mark.skipif(not has_sanitizers(), reason="g++ has no sanitizers here")


def test_a_read_outside_is_reported() -> None:
    inside, outside = (sanitized(f"{READS_OUTSIDE}::{name}") for name in ("test_inside", "test_outside"))
    assert inside.returncode == 0, inside.stdout + inside.stderr
    assert outside.returncode != 0
    assert "heap-buffer-overflow" in outside.stderr and "READ of size" in outside.stderr


def test_kernels_stay_inside() -> None:
    """One kernel of each feature; `tools/sanitize` alone runs far more."""
    done = sanitized("tests/codegen/test_cpp_kernels.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_kernels_over_nothing() -> None:
    """Tensors whose counted sizes are 0."""
    done = sanitized("tests/sanitize/counted_nothing.py")
    assert done.returncode == 0, done.stdout + done.stderr
