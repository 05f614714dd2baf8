"""Files that the documentation names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"`((?:kiln|csrc|tests|tools|docs|benchmarks)/[\w./*-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    missing = [name for name in NAMED.findall(page.read_text()) if not any(ROOT.glob(name.rstrip("/")))]
    assert not missing
