"""KILN_DUMP: one numbered file per stage, in a folder per compiled region.

kiln_dump/001_BertModel.forward/03_forward.txt
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


class Dump:
    """Writes the text of each stage below `folder`; with no folder, texts are not even made."""

    def __init__(self, folder: Path | None, name: str = "region") -> None:
        self.folder = folder
        self.count = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            number = 1 + sum(1 for _ in folder.iterdir())
            self.folder = folder / f"{number:03}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}"
            self.folder.mkdir()

    def write(self, stage: str, text: Callable[[], object]) -> None:
        """Write `text()` as the next file, unless there is no folder."""
        if self.folder is None:
            return
        self.count += 1
        (self.folder / f"{self.count:02}_{stage}.txt").write_text(str(text()).rstrip() + "\n")
