"""KILN_DUMP: one numbered file per stage, in a folder per compiled region.

kiln_dump/001_BertModel.forward/03_forward.txt
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


class Dump:
    """Writes the text of each stage below `folder`; without a folder, texts are not made."""

    def __init__(self, folder: Path | None, name: str = "region") -> None:
        self.root = folder
        self.name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
        self.folder: Path | None = None
        self.count = 0

    def write(self, stage: str, text: Callable[[], object]) -> None:
        """Write `text()` as the next file."""
        if self.root is None:
            return
        if self.folder is None:
            self.folder = self._new_folder(self.root)
        self.count += 1
        (self.folder / f"{self.count:02}_{stage}.txt").write_text(str(text()).rstrip() + "\n")

    def _new_folder(self, root: Path) -> Path:
        """A folder with the next number, which no other thread or process has taken."""
        root.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in root.iterdir())
        while True:
            number += 1
            folder = root / f"{number:03}_{self.name}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
