"""The C++ functions that kernels call; a kernel's source contains those it uses.

    prelude_for("const f32v v1 = exp(v0);", lanes=16)    sections base, KILN_FUNCTION, mad, ..., exp

The sections are in `prelude/*.h`, each under a line `//@ name: needs`. A section is used if its name, or one that it
defines, occurs. Include guards let kernels that are compiled together share one copy for each number of lanes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from kiln.loops.codegen.sections import Section, Sections

_FOLDER = Path(__file__).parent / "prelude"
_WORD = re.compile(r"\w+")
_DEFINED = re.compile(r"^(?:template .*)?(?:KILN_INLINE [\w<> ]+?|struct) (\w+)[({ ]", re.MULTILINE)


@lru_cache(maxsize=1)
def sections() -> Sections:
    return Sections.read(_FOLDER, "*.h", "//@", _DEFINED.findall)


def namespace(lanes: int) -> str:
    """That of the functions for so many lanes."""
    return f"kiln{lanes}"


def prelude_for(text: str, lanes: int) -> str:
    used = sections().used(["base", *_WORD.findall(text)])
    return "\n".join([_LANES.format(lanes), *(_guarded(section, lanes) for section in used)])


_LANES = """\
#undef KILN_W
#define KILN_W {}
#undef KILN_AVX512
#if defined(__AVX512F__) && defined(__AVX512DQ__) && KILN_W == 16
#define KILN_AVX512
#endif"""
"""What differs between the kernels of one unit."""


def _guarded(section: Section, lanes: int) -> str:
    guarded = f"namespace {namespace(lanes)} {{\n{section.text}\n}}"
    return _GUARD.format(section.name, lanes, guarded)


_GUARD = """\
#ifndef KILN_HAS_{0}_{1}
#define KILN_HAS_{0}_{1}
{2}
#endif"""
