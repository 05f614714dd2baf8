"""Models of transformers: the second process loads what the first one compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.persist.real_models import MODELS

ROOT = Path(__file__).parents[2]


def counts(folder: Path, hash_seed: int) -> list[str]:
    command = [sys.executable, "-m", "tests.persist.real_models", str(folder), *MODELS]
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed), "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_second_process_loads_everything(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert counts(tmp_path, 1) == [f"{name} 1 0 0 True" for name in MODELS]
    assert counts(tmp_path, 2) == [f"{name} 0 1 0 True" for name in MODELS]
