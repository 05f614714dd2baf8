"""docs/glossary.md: at most 60 terms, in order, each in use in the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(r"(?m)^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text())[1:]
TERMS = [term for term, _ in ROWS]


def words(text: str) -> str:
    """Identifiers and prose as words in lower case: `FakeTensor` and `fake_tensor` are "fake tensor"."""
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)).lower()


def test_at_most_sixty_terms_in_order() -> None:
    assert 30 < len(TERMS) <= 60
    assert sorted(set(TERMS)) == TERMS
    assert all(meaning.strip() for _, meaning in ROWS)


def test_every_term_names_something() -> None:
    """A module, class, function or field of the package has the term in its name."""
    names: set[str] = set()
    for path in (ROOT / "kiln").rglob("*.py"):
        names |= {path.stem, *re.findall(r"(?m)^ *(?:class |def )?(\w+) ?[(:=]", path.read_text())}
    used = "\n".join(map(words, names))
    assert not [term for term in TERMS if not re.search(rf"\b{term.removesuffix('e')}", used)]
