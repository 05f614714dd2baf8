"""Content-addressed entries in a folder that many processes share.

    store = DiskStore(default_folder(), max_bytes=2 << 30)
    store.put("kernel", key, data)          # a file kernel/ab/ab12...: written aside, then renamed
    store.get("kernel", key)                # the bytes, or None: absent, cut short and corrupted are all a miss

An entry carries a header with its length and checksum, so a torn or flipped file is noticed, removed and counted as
a miss. Nothing in an entry or in the layout of the folder names the folder: it can be moved or copied. Reading marks
an entry as used; when the folder outgrows `max_bytes` the entries unused for longest go first. No locks: names
follow from contents, so two writers of one key write the same thing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

MAGIC = b"KILN\x01\r\n\x00"
HEADER = struct.Struct("<8sQ16s")
DEFAULT_MAX_BYTES = 4 << 30
MARK_USED_AFTER = 3600.0
SWEEP_EVERY_BYTES = 64 << 20
SWEEP_TO = 0.8
ABANDONED_AFTER = 3600.0


def content_key(*parts: bytes | str) -> str:
    """The name of contents: 128 bits of BLAKE2 over the parts, each with its length."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.hexdigest()


def default_folder() -> Path:
    """`kiln` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kiln"


@final
@dataclass(frozen=True, slots=True)
class StoredEntry:
    """What the sweep knows of a file."""

    path: Path
    size: int
    used: float


class DiskStore:
    """Entries by (kind, key); `kind` is the folder: "kernel", "library", "plan", "region"."""

    def __init__(self, folder: Path | str, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self._written = 0

    def path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key[:2] / key

    def get(self, kind: str, key: str) -> bytes | None:
        """The contents, or None."""
        path = self.path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = unsealed(data)
        if body is None:
            _remove(path)
            return None
        self._mark_used(path)
        return body

    def put(self, kind: str, key: str, body: bytes) -> None:
        """Store the contents; does nothing where the folder cannot be written or is full: a cache may forget."""
        with contextlib.suppress(OSError):
            _write_aside(self.path(kind, key), sealed(body))
            self._count(len(body))

    def file(self, kind: str, name: str) -> Path | None:
        """The path of a file named after its contents (`put_file`), or None. For what must be opened by name."""
        path = self.path(kind, name)
        try:
            intact = content_key(path.read_bytes()) == name
        except OSError:
            return None
        if not intact:
            _remove(path)
            return None
        self._mark_used(path)
        return path

    def put_file(self, kind: str, body: bytes) -> Path:
        """Store the contents as they are, under their own key. Raises OSError where the folder cannot be written."""
        path = self.path(kind, content_key(body))
        _write_aside(path, body)
        self._count(len(body))
        return path

    def entries(self) -> Iterator[StoredEntry]:
        """Every file of the store; those that vanish meanwhile are left out."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(OSError):
                    facts = path.stat()
                    yield StoredEntry(path, facts.st_size, facts.st_mtime)

    def sweep(self) -> int:
        """Remove the entries unused for longest until 80 % of `max_bytes` are left, and abandoned partial files.

        Returns the bytes removed. A library that another process has open stays usable for it.
        """
        found = sorted(self.entries(), key=lambda entry: entry.used)
        total, removed, now = sum(entry.size for entry in found), 0, time.time()
        over = total > self.max_bytes
        for entry in found:
            partial = entry.path.suffix == ".part"
            if (partial and now - entry.used > ABANDONED_AFTER) or (
                not partial and over and total - removed > SWEEP_TO * self.max_bytes
            ):
                _remove(entry.path)
                removed += entry.size
        return removed

    def _count(self, size: int) -> None:
        self._written += size
        if self._written >= min(SWEEP_EVERY_BYTES, self.max_bytes):
            self._written = 0
            self.sweep()

    def _mark_used(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > MARK_USED_AFTER:
                os.utime(path)


def sealed(body: bytes) -> bytes:
    """The contents behind a header by which damage is noticed."""
    return HEADER.pack(MAGIC, len(body), hashlib.blake2b(body, digest_size=16).digest()) + body


def unsealed(data: bytes) -> bytes | None:
    """The contents, or None when they are damaged or of another version."""
    if len(data) < HEADER.size:
        return None
    magic, length, digest = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if magic != MAGIC or len(body) != length or hashlib.blake2b(body, digest_size=16).digest() != digest:
        return None
    return body


def _write_aside(path: Path, data: bytes) -> None:
    """Readers see the old file, the new file or none, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        _remove(Path(name))
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
