"""The Triton functions that kernels call; a kernel's source contains those it uses.

    prelude_for("v1 = sigmoid(v0)")    imports, div, sigmoid

The sections are in `prelude/*.triton`, each under a line `#@ name: needs`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from kiln.loops.codegen.sections import Sections

_FOLDER = Path(__file__).parent / "prelude"
_CALL = re.compile(r"(?<![.\w])\w+")
_IMPORTS = "import triton\nimport triton.language as tl"
_LIBDEVICE = "from triton.language.extra import libdevice"


@lru_cache(maxsize=1)
def sections() -> Sections:
    return Sections.read(_FOLDER, "*.triton", "#@")


def prelude_for(text: str) -> str:
    functions = [section.text for section in sections().used(_CALL.findall(text))]
    imports = _IMPORTS
    if any("libdevice." in piece for piece in (text, *functions)):
        imports += f"\n{_LIBDEVICE}"
    return "\n\n\n".join([imports, *functions])
