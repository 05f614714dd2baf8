"""The C++ functions that kernels call; a kernel's source contains those it uses.

    prelude_for("const f32v v1 = exp(v0);", lanes=16)    sections base, KILN_FUNCTION, mad, ..., exp

The sections are in `prelude/*.h`, each under a line `//@ name: needs`. A section is used if its name, or one that it
defines, occurs. Include guards let kernels that are compiled together share one copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from kiln.loops.codegen.sections import Section, Sections

_FOLDER = Path(__file__).parent / "prelude"
_WORD = re.compile(r"\w+")
_DEFINED = re.compile(r"^(?:template .*)?(?:KILN_INLINE [\w<> ]+?|struct) (\w+)[({ ]", re.MULTILINE)


@lru_cache(maxsize=1)
def sections() -> Sections:
    return Sections.read(_FOLDER, "*.h", "//@", _DEFINED.findall)


def prelude_for(text: str, lanes: int) -> str:
    return "\n".join(_guarded(sections().used(["base", *_WORD.findall(text)]), lanes))


def _guarded(used: list[Section], lanes: int) -> Iterator[str]:
    for section in used:
        body = section.text
        if section.name == "base":
            body = f"#define KILN_W {lanes}\nconstexpr int W = KILN_W;  // lanes of every vector\n{body}"
        yield f"#ifndef KILN_HAS_{section.name}\n#define KILN_HAS_{section.name}\nnamespace kiln {{\n{body}\n}}\n#endif"
