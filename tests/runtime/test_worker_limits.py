"""The memory that a process which compiles Triton kernels may use."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = "import resource; from kiln.build.triton_worker import limit_memory; limit_memory({}); "
SCRIPT += "soft, hard = resource.getrlimit(resource.RLIMIT_DATA); print(soft, hard)"


@pytest.mark.parametrize("megabytes", [0, 300])
def test_megabytes_are_megabytes(megabytes: int) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(megabytes)], capture_output=True, text=True, check=True)
    soft, hard = map(int, done.stdout.split())
    assert soft == (megabytes * 1024 * 1024 or hard)
