"""Unusual environments: a user without home, name or folders; many processes with one cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.child import search_path

ROOT = Path(__file__).resolve().parents[2]
HERE = {"PYTHONPATH": search_path(), "CUDA_VISIBLE_DEVICES": ""}
PROGRAM = """
import os, sys, warnings
import torch, kiln, kiln.pipeline.variant_compile  # now: another user may not be let into Python's folders
from kiln.runtime.cache.private_folder import CacheWarning
from kiln.api.compiler import session_of
from tests.persist.programs import pointwise
torch.set_num_threads(1)
x = torch.randn(4)
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    compiled = kiln.compile(pointwise, options={"cache": True})
    for _ in range(2):
        assert torch.allclose(compiled(x), pointwise(x))
assert kiln.report_of(compiled).eager == 0, caught
print(*[str(warning.message).split()[0] for warning in caught if issubclass(warning.category, CacheWarning)])
"""
NOBODY = 54321


def codes(environment: dict[str, str], user: int | None = None) -> list[str]:
    """Codes of the warnings about the cache; the program is compiled and right."""
    base = {"PATH": os.environ["PATH"], **HERE, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PROGRAM, *([] if user is None else [str(user)])]
    done = subprocess.run(command, env={**base, **environment}, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_a_home_that_cannot_be_written() -> None:
    assert codes({"HOME": "/proc/nowhere"}) == ["KILN6005"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_a_user_without_a_name_and_a_home() -> None:
    assert codes({"TMPDIR": "/nowhere", "HOME": "/"}, user=NOBODY) == ["KILN6005"]


FORKS = """
import os, sys
import torch, kiln
from tests.persist.programs import PROGRAMS, run
torch.set_num_threads(1)

def once(name="plain", cache=True):
    function, args, kwargs = PROGRAMS[name]()
    compiled = kiln.compile(function, options={"cache": cache, "cache_dir": sys.argv[1]})
    run(compiled, args, kwargs)
    return kiln.report_of(compiled)

once("closure", cache=False)  # forks inherit the state that this leaves in the process
children = []
for _ in range(16):
    child = os.fork()
    if not child:
        try:
            os._exit(once().eager)
        except BaseException:
            os._exit(99)
    children.append(child)
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 16
report = once()
assert report.compiles == 0 and report.loaded > 0, report
"""


def test_sixteen_forks_share_a_cache(tmp_path: Path) -> None:
    environment = {**os.environ, **HERE, "KILN_OPTIONS": ""}
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path / "cache")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
