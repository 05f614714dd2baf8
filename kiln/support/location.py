"""A line of the user's program."""

from __future__ import annotations

import linecache
import sysconfig
from dataclasses import dataclass
from typing import final

LIBRARIES = (*sysconfig.get_paths().values(), "<frozen")
"""Where the files of Python and of installed packages are."""


@final
@dataclass(frozen=True, slots=True)
class Location:
    """A line of user code: `model.py:41, in Net.forward`."""

    file: str
    line: int
    function: str = ""

    def text(self) -> str:
        where = f", in {self.function}" if self.function else ""
        return f"{self.file}:{self.line}{where}"

    @property
    def in_library(self) -> bool:
        """Whether it belongs to an installed package or to Python itself, not to the program."""
        return self.file.startswith(LIBRARIES) or "site-packages" in self.file

    def source_line(self) -> str:
        """The text of the line, or `""` when the file cannot be read."""
        return linecache.getline(self.file, self.line)
