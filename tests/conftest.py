"""Fixtures of all tests: golden files with one update flag, quiet threads."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kiln.runtime.executor import OBSERVERS
from tests.plans.recording import PlanRecording
from tests.sanitize import options as sanitizers

RECORDING = pytest.StashKey[PlanRecording]()
REPLAYED = pytest.StashKey[list[tuple[bool, str]]]()
"""Of each process that ran tests: whether its plans ran alike without the compiler, and what was said of them."""
os.environ.setdefault("KILN_OPTIONS", "cache=false")  # a test compiles; what an earlier run left on disk stays there


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files; review them as a diff")
    parser.addoption(
        "--replay-plans", action="store_true", help="run every plan of these tests again, in a process without compiler"
    )
    parser.addoption("--sanitize", action="store_true", help="kernels with address and UB checks; by tools/sanitize")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sanitize"):
        sanitizers.enable()
    hands_out = config.getoption("numprocesses", None) and not is_worker(config)
    if config.getoption("--replay-plans") and not hands_out:
        recording = PlanRecording(Path(tempfile.mkdtemp(prefix="kiln-plans-")))
        config.stash[RECORDING] = recording
        OBSERVERS.append(recording)


def pytest_runtest_setup(item: pytest.Item) -> None:
    recording = item.config.stash.get(RECORDING, None)
    if recording is not None:
        recording.paused = item.get_closest_marker("unrecorded") is not None


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of the processes of `pytest -n`."""
    return hasattr(config, "workeroutput")


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    recording = config.stash.get(RECORDING, None)
    if recording is not None:
        OBSERVERS.remove(recording)
        replayed = recording.replay()
        shutil.rmtree(recording.folder, ignore_errors=True)
        if is_worker(config):
            config.workeroutput["replayed"] = replayed
        else:
            config.stash[REPLAYED] = [replayed]
    if any(not right for right, _ in config.stash.get(REPLAYED, [])):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A process of `pytest -n` has ended; one that ended early has not replayed its plans."""
    if node.config.getoption("--replay-plans"):
        replayed = getattr(node, "workeroutput", {}).get("replayed", (False, f"no plans were replayed: {error}"))
        node.config.stash.setdefault(REPLAYED, []).append(replayed)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for _, text in config.stash.get(REPLAYED, []):
        terminalreporter.write_line(text)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # torch.manual_seed keeps the stack of each call for a device that is never initialised
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def little_garbage() -> None:
    """The collector does not look again at what earlier files left: a full collection would take seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_sessions() -> None:
    """Models share nothing with equal ones of earlier tests, which may still live."""
    if "kiln.api.compiler" in sys.modules:
        sys.modules["kiln.api.compiler"].SHARED.clear()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(text)`: equal to the stored text of this test, in `golden/<test file>/<test>.txt` beside it.

    A second text of one test takes a name: `golden(text, "plan")`.
    """

    def check(text: object, name: str = "") -> None:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", request.node.name) + (f".{name}" if name else "")
        path = Path(request.node.path).parent / "golden" / Path(request.node.path).stem / f"{stem}.txt"
        actual = str(text).rstrip() + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual)
            return
        if not path.exists():
            pytest.fail(f"no golden file {path.name}; run pytest --update-golden and review it")
        expected = path.read_text()
        assert actual == expected, f"{path.name} differs; after review run pytest --update-golden"

    return check
