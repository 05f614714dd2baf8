"""A pytest plugin that notes which functions of kiln/ each test calls, and how long it takes.

    python -m pytest -p tools.mutate.calls --calls build/mutate/calls.jsonl tests/fusion
    {"test": "tests/fusion/test_fusion.py::test_all", "calls": ["loops/fusion/fuse.py:41"], "seconds": 0.1}

A function is its file below kiln/ and the line of its `def` or first decorator. The file grows; the last line of a test
counts.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = f"{ROOT}/kiln/"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--calls", type=Path, help="where to note which functions each test calls")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--calls")
    if path is not None:
        config.pluginmanager.register(CallRecorder(path), "mutate-calls")


class CallRecorder:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._out = path.open("a")
        self._seen: dict[int, CodeType] = {}  # by id: code with a dict among its constants has no hash
        self._passed = True

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Setup, call and teardown."""
        seen = self._seen
        seen.clear()
        self._passed = True

        def note(frame: FrameType, event: str, argument: object) -> None:
            seen[id(frame.f_code)] = frame.f_code

        start = time.perf_counter()
        threading.settrace(note)
        sys.settrace(note)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        calls = sorted(
            {
                f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno}"
                for code in list(seen.values())
                if code.co_filename.startswith(PACKAGE)
            }
        )
        found = {"test": item.nodeid, "seconds": round(time.perf_counter() - start, 3), "calls": calls}
        found["passed"] = self._passed
        self._out.write(json.dumps(found) + "\n")
        self._out.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._passed = False
