"""Pages that show programs and their output, run: files are written, commands run in order, output is compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.child import search_path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"first-hour.md": 6, "export.md": 9}
"""With the number of commands that run."""
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = "$ pip install"


def files_and_commands(page: str) -> Iterator[tuple[str, str]]:
    """Of a Python block its file and text, of a transcript the command and the expected output."""
    for language, text in BLOCK.findall(page):
        first, _, rest = text.partition("\n")
        yield (first.removeprefix("# "), rest) if language == "python" else (first, rest)


def pattern(expected: str) -> re.Pattern[str]:
    """Of the output: `...` stands for anything."""
    return re.compile(".*".join(map(re.escape, expected.strip().split("..."))), re.DOTALL)


@pytest.mark.parametrize(
    ("page", "commands"),
    [pytest.param(*row, id=row[0], marks=[pytest.mark.slow] if row[0] == "export.md" else []) for row in PAGES.items()],
)
def test_a_page_does_what_it_shows(page: str, commands: int, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
    environment = {**inherited, "PYTHONPATH": search_path(), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = []
    for name, text in files_and_commands((ROOT / "docs" / page).read_text()):
        if not name.startswith("$ "):
            (tmp_path / name).write_text(text)
            continue
        if name.startswith(INSTALL):
            continue
        command = name.removeprefix("$ python").split()
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        ran.append(name)
        assert done.returncode == 0, f"{name}\n{done.stdout}"
        assert pattern(text).fullmatch(done.stdout.strip()), f"{name}\n{done.stdout}"
    assert len(ran) == commands


def test_a_pattern_is_not_anything() -> None:
    assert pattern("a ... c\n").fullmatch("a b c") and not pattern("a ... c").fullmatch("a b d")
