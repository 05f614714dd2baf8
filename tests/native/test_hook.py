"""The frame hook: the scenarios under this CPython and others, CPython's own tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kiln.native import _frames
from tests.native import hook_scenarios

if not _frames.hook_supported:
    pytest.skip("no frame hook for this CPython", allow_module_level=True)

ROOT = Path(__file__).parents[2]
SCENARIOS = [value for name, value in vars(hook_scenarios).items() if name.startswith("scenario_")]
TEST_MODULES = (
    *(
        "test_scope",
        "test_call",
        "test_exceptions",
        "test_generators",
        "test_functools",
        "test_contextlib",
        "test_dict",
    ),
    *("test_descr", "test_keywordonlyarg", "test_extcall", "test_with", "test_raise", "test_enum", "test_dataclasses"),
    *("test_decorators", "test_super", "test_property", "test_itertools", "test_unpack_ex"),
)
EXPLAINED = {
    "test_slots",  # counts all objects, including those made for code objects
    "test_super_deep",  # a hook costs recursion depth on 3.12
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.removeprefix("scenario_"))
def test_scenario(scenario: Callable[[Any], None]) -> None:
    for _ in range(3):
        scenario(_frames)


def build_alone(folder: Path, include: str) -> None:
    """The hook without torch, for the CPython whose headers are in `include`."""
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-DKILN_WITHOUT_TORCH", f"-I{ROOT / 'csrc'}", f"-I{include}"]
    source = ROOT / "csrc" / "frames" / "hook.cpp"
    subprocess.run(["g++", *flags, str(source), "-o", str(folder / "_hook.so")], check=True)


def other_pythons() -> list[Path]:
    """Interpreters of other supported versions, installed by pyenv."""
    found = sorted(Path.home().glob(".pyenv/versions/3.1[1-4].*/bin/python3"))
    return [path for path in found if f"{sys.version_info.major}.{sys.version_info.minor}." not in str(path)]


@pytest.mark.slow
@pytest.mark.parametrize("python", other_pythons(), ids=lambda path: path.parts[-3])
def test_scenarios_under_another_cpython(python: Path, tmp_path: Path) -> None:
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"]
    build_alone(tmp_path, subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    run_cpython_tests(str(python), tmp_path, [])
    run_cpython_tests(str(python), tmp_path, ["--tests", *TEST_MODULES])


@pytest.mark.slow
@pytest.mark.skipif(
    not find_spec("test") or not find_spec("test.test_scope"), reason="this Python comes without its own tests"
)
def test_cpythons_own_tests_with_every_function_replaced_by_a_copy(tmp_path: Path) -> None:
    build_alone(tmp_path, sysconfig.get_paths()["include"])
    run_cpython_tests(sys.executable, tmp_path, ["--tests", *TEST_MODULES])


def run_cpython_tests(python: str, folder: Path, arguments: list[str]) -> None:
    script = str(Path(hook_scenarios.__file__))
    run = subprocess.run([python, script, str(folder), "_hook", *arguments], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    if not arguments:
        assert run.stdout.startswith("passed")
        return
    last = run.stdout.strip().splitlines()[-1]
    failures = {name.split()[0] for name in eval(last[last.index("[") :])}
    assert failures <= EXPLAINED, run.stderr
