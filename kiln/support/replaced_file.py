"""Files that are whole or not there.

with replaced_file("m.kiln") as file:
    file.write(data)
remove_file(path)
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` at the end; if the body raises, what was there stays. Raises OSError."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def remove_file(path: Path) -> None:
    """Remove it where it is there and that is possible."""
    with contextlib.suppress(OSError):
        path.unlink()
