"""A line of the user's program."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import final


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

    def source_line(self) -> str:
        """The text of the line, or `""` when the file cannot be read."""
        return linecache.getline(self.file, self.line)
