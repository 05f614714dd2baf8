"""The environment of processes that tests start: they find Kiln, and the packages that this process found."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def search_path(*folders: Path) -> str:
    """PYTHONPATH with `folders` and Kiln in front of this process's own."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*map(str, folders), str(ROOT), *filter(None, [given])])
