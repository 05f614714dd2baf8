"""What KILN_DUMP wrote of the one region that a toy compiled."""

from __future__ import annotations

import os
from pathlib import Path


def dumped(stage: str) -> str:
    """The text of a stage."""
    (file,) = Path(os.environ["KILN_DUMP"]).glob(f"*/[0-9]*[0-9]_{stage}.txt")
    return file.read_text()
