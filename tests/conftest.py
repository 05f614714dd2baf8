"""Fixtures of all tests: golden files with one update flag, quiet threads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

os.environ.setdefault("KILN_OPTIONS", "cache=false")  # a test compiles; what an earlier run left on disk stays there


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files; review them as a diff")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


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
