"""Names of arguments, results and symbols as C identifiers.

Names(["x"]).name("kwargs.mask")      "kwargs_mask"
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import final

C_WORDS = (
    "alignas", "alignof", "asm", "auto", "bitand", "bitor", "bool", "case", "catch", "char", "compl", "concept",
    "const", "constexpr", "decltype", "default", "delete", "do", "double", "enum", "explicit", "export",
    "extern", "float", "friend", "goto", "inline", "int", "int64_t", "linux", "long", "mutable", "namespace",
    "new", "noexcept", "nullptr", "operator", "private", "protected", "public", "register", "requires",
    "restrict", "short", "signed", "sizeof", "size_t", "static", "struct", "switch", "template", "this",
    "throw", "typedef", "typeid", "typename", "union", "unix", "unsigned", "using", "virtual", "void",
    "volatile", "xor",
)  # fmt: skip
"""Of C and C++, beside those of Python."""


@final
class Names:
    """Gives each text another identifier."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*taken, *C_WORDS, *keyword.kwlist}

    def name(self, text: str) -> str:
        made = re.sub(r"\W", "_", text, flags=re.ASCII) or "value"
        made = f"_{made}" if made[0].isdigit() else made
        while made in self._taken:
            made += "_"
        self._taken.add(made)
        return made
