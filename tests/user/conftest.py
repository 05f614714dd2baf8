"""Fixtures of programs that users run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the metadata of an installed Kiln; its entry points are found through it."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "setup.py", "-q", "egg_info", f"--egg-base={folder}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """`run(text, *options, arguments=())` runs a program of a user's, with this Kiln installed."""

    def run_program(
        text: str, *options: str, arguments: tuple[str, ...] = (), fails: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(text))
        path = os.pathsep.join([str(ROOT), str(installed), str(tmp_path)])
        defaults = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        target = [] if "-m" in options else [str(program)]
        done = subprocess.run(
            [sys.executable, *options, *target, *arguments],
            cwd=tmp_path,
            env={**os.environ, **defaults, **environment},
            capture_output=True,
            text=True,
        )
        assert fails or done.returncode == 0, done.stdout + done.stderr
        return done

    return run_program
