"""The C++ functions that kernels call: only those that a kernel uses are written above it.

    prelude_for("const f32v v1 = exp(v0);", lanes=16)    sections base, KILN_FUNCTION, mad, ..., exp

The sections stand in `prelude/*.h`, each under a line `//@ name: needs`. A section is used where its name, or one that
it defines, occurs. Each is written between guards, so that kernels that are compiled together share one copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

_FOLDER = Path(__file__).parent / "prelude"
_HEAD = re.compile(r"^//@ (\w+)(?:: (.*))?$", re.MULTILINE)
_WORD = re.compile(r"\w+")
_DEFINED = re.compile(r"^(?:template .*)?(?:KILN_INLINE [\w<> ]+?|struct) (\w+)[({ ]", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class Section:
    """Part of the prelude. `needs`: sections that it calls; `names`: what it defines."""

    name: str
    needs: tuple[str, ...]
    names: frozenset[str]
    text: str


@lru_cache(maxsize=1)
def sections() -> Mapping[str, Section]:
    """All sections by name, in the order of the files."""
    found: dict[str, Section] = {}
    for path in sorted(_FOLDER.glob("*.h")):
        parts = _HEAD.split(path.read_text())[1:]
        for name, needs, text in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
            names = frozenset({name, *_DEFINED.findall(text)})
            found[name] = Section(name, tuple((needs or "").split()), names, text.strip())
    return found


@lru_cache(maxsize=1)
def _section_of_name() -> Mapping[str, str]:
    return {name: section.name for section in sections().values() for name in section.names}


def used_sections(text: str) -> list[Section]:
    """The sections that `text` needs, each after those that it needs itself."""
    order: dict[str, None] = {}

    def need(name: str) -> None:
        if name not in order:
            for other in sections()[name].needs:
                need(other)
            order[name] = None

    need("base")
    owners = _section_of_name()
    for word in dict.fromkeys(_WORD.findall(text)):
        if word in owners:
            need(owners[word])
    return [sections()[name] for name in order]


def prelude_for(text: str, lanes: int) -> str:
    """The C++ text that has to stand above `text`."""
    return "\n".join(_guarded(used_sections(text), lanes))


def _guarded(used: list[Section], lanes: int) -> Iterator[str]:
    for section in used:
        body = section.text
        if section.name == "base":
            body = f"#define KILN_W {lanes}\nconstexpr int W = KILN_W;  // lanes of every vector\n{body}"
        yield f"#ifndef KILN_HAS_{section.name}\n#define KILN_HAS_{section.name}\nnamespace kiln {{\n{body}\n}}\n#endif"
