"""docs/decisions.md: entries by area, newest first, each at most eight lines of context, decision and evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "decisions.md"
ENTRY = re.compile(r"### (\d{4}-\d\d-\d\d) \S.*")
PARTS = ("**Context.**", "**Decision.**", "**Evidence.**")
AREAS = dict(part.split("\n", 1) for part in PAGE.read_text().split("\n## ")[1:])


@pytest.mark.parametrize("area", AREAS)
def test_form_of_an_area(area: str) -> None:
    before, *entries = re.split(r"(?m)^(?=### )", AREAS[area])
    assert not before.strip() and entries
    dates = []
    for text in entries:
        title, *lines = filter(None, text.splitlines())
        head = ENTRY.fullmatch(title)
        assert head, title
        dates.append(head[1])
        assert len(lines) <= 8 and max(map(len, lines)) <= 200, title
        starts = [line.split(" ")[0] for line in lines if line.startswith("**")]
        assert tuple(starts) == PARTS and lines[0].startswith(PARTS[0]), title
    assert dates == sorted(dates, reverse=True)


def test_headings_follow_a_blank_line() -> None:
    text = PAGE.read_text()
    assert not re.findall(r"(?m)(?<=[^\n]\n)^#+ .*$", text)


def test_titles_are_unique() -> None:
    titles = re.findall(r"(?m)^### \S+ (.*)$", PAGE.read_text())
    assert len(titles) == len(set(titles))
