"""The Triton functions that kernels call: only those that a kernel uses are written above it.

    prelude_for("v1 = sigmoid(v0)")    imports, div, sigmoid

The sections stand in `prelude/*.triton`, each under a line `#@ name: needs`. Kernels are files of their own, so they
share nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

_FOLDER = Path(__file__).parent / "prelude"
_HEAD = re.compile(r"^#@ (\w+)(?:: (.*))?$", re.MULTILINE)
_CALL = re.compile(r"(?<![.\w])\w+")
_IMPORTS = "import triton\nimport triton.language as tl"
_LIBDEVICE = "from triton.language.extra import libdevice"


@final
@dataclass(frozen=True, slots=True)
class Section:
    """One function of the prelude, and those that it calls."""

    name: str
    needs: tuple[str, ...]
    text: str


@lru_cache(maxsize=1)
def sections() -> Mapping[str, Section]:
    """All sections by name."""
    found: dict[str, Section] = {}
    for path in sorted(_FOLDER.glob("*.triton")):
        parts = _HEAD.split(path.read_text())[1:]
        for name, needs, text in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
            found[name] = Section(name, tuple((needs or "").split()), text.strip())
    return found


def prelude_for(text: str) -> str:
    """Imports and functions that have to stand above the kernel `text`."""
    order: dict[str, None] = {}

    def need(name: str) -> None:
        if name not in order:
            for other in sections()[name].needs:
                need(other)
            order[name] = None

    for word in dict.fromkeys(_CALL.findall(text)):
        if word in sections():
            need(word)
    functions = [sections()[name].text for name in order]
    imports = _IMPORTS
    if any("libdevice." in one for one in (text, *functions)):
        imports += f"\n{_LIBDEVICE}"
    return "\n\n\n".join([imports, *functions])
