"""Which files are the user's program."""

from __future__ import annotations

import linecache
import os

import pytest
import torch

from kiln.support import location
from kiln.support.location import Location, library_folders

SYSTEM = {"stdlib": "/usr/lib/python3.11", "platstdlib": "/usr/lib/python3.11", "data": "/usr", "scripts": "/usr/bin"}
SYSTEM |= {"purelib": "/usr/local/lib/python3.11/dist-packages", "platlib": "/usr/local/lib/python3.11/dist-packages"}


@pytest.mark.parametrize(
    ("file", "in_library"),
    [
        ("/usr/src/app/model.py", False),
        ("/usr/lib/python3.11-apps/model.py", False),
        ("/home/me/site-packages-of-mine/model.py", False),
        ("/usr/lib/python3.11/copy.py", True),
        ("/usr/lib/python3/dist-packages/numpy/core.py", True),
        ("/home/me/.local/lib/python3.11/site-packages/torch/nn/modules/linear.py", True),
        ("<frozen importlib._bootstrap>", True),
    ],
)
def test_programs_below_the_prefix_of_python(monkeypatch: pytest.MonkeyPatch, file: str, in_library: bool) -> None:
    monkeypatch.setattr(location, "LIBRARIES", library_folders(SYSTEM))
    assert Location(file, 1).in_library is in_library


def test_files_of_this_process() -> None:
    assert Location(os.__file__, 1).in_library and Location(linecache.__file__, 1).in_library
    assert Location(torch.__file__, 1).in_library and not Location(__file__, 1).in_library
