"""Content-addressed entries in a folder that many processes share.

    store = DiskStore(default_folder(), max_bytes=2 << 30)
    store.put("kernel", key, data)          # a file kernel/ab/ab12...: written aside, then renamed
    store.get("kernel", key)                # the bytes, or None: absent, cut short and corrupted are all a miss

Folders are private (`private_folder.py`). An entry carries a seal over its kind, key and contents, made with the
folder's secret key: a torn, altered, renamed or planted file is removed and counted as a miss. Nothing in an entry
names the folder: it can be moved or copied. Reading marks an entry as used; when the folder outgrows `max_bytes` the
entries unused for longest go first. No locks: names follow from contents, so two writers of one key write the same.

A folder that is not safe or cannot be written is not used: one warning with a code, and every `get` is a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import final

from kiln.runtime.cache.private_folder import (
    CacheNotWritten,
    check_private,
    close_to_others,
    make_private,
    open_private,
    reason,
    seal_key,
    warn_once,
    written_aside,
)
from kiln.support.errors import KilnError
from kiln.support.records import dataclass
from kiln.support.replaced_file import remove_file

MAGIC = b"KILN\x02\r\n\x00"
HEADER = struct.Struct("<8sQ32s")
OWN_FILES = re.compile(r"[a-z]+/(..)/(\1[^./]*|tmp\w+\.part)")
"""The files that a sweep may remove, relative to the folder: it may be one that holds other things too."""
DEFAULT_MAX_BYTES = 4 << 30
MARK_USED_AFTER = 3600.0  # seconds; a read that comes earlier writes nothing
SWEEP_EVERY_BYTES = 64 << 20  # counted over the writes of this process
SWEEP_TO = 0.8  # of `max_bytes`, so that the next write does not sweep again
ABANDONED_AFTER = 3600.0  # seconds; no writer of a partial file takes as long


def content_key(*parts: bytes | str) -> str:
    """The name of contents: 128 bits of BLAKE2 over the parts, each with its length."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.hexdigest()


def default_folder() -> Path | None:
    """`kiln` in the user's cache folder; None for a user without a home folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "kiln"
    try:
        return Path.home() / ".cache" / "kiln"
    except RuntimeError:  # an unknown user id
        return None


@final
@dataclass(frozen=True, slots=True)
class StoredEntry:
    """What the sweep knows of a file."""

    path: Path
    size: int
    used: float


class DiskStore:
    """Entries by (kind, key); `kind` is the folder: "kernel", "library", "plan", "region". Without `folder`: none."""

    def __init__(self, folder: Path | str | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder = None if folder is None else Path(folder)
        self.max_bytes = max_bytes
        self._written = 0
        self._key: bytes | None = None
        self._refused = False

    def path(self, kind: str, key: str) -> Path:
        assert self.folder is not None
        return self.folder / kind / key[:2] / key

    def has(self, kind: str, key: str) -> bool:
        """Is there an entry? It may be damaged."""
        return self._open() is not None and self.path(kind, key).exists()

    def get(self, kind: str, key: str) -> bytes | None:
        """The contents, or None."""
        secret = self._open()
        data = self._read(kind, key) if secret is not None else None
        if data is None or secret is None:
            return None
        body = unsealed(data, secret, kind, key)
        if body is None:
            remove_file(self.path(kind, key))
        return body

    def put(self, kind: str, key: str, body: bytes) -> None:
        """Store the contents; does nothing where the folder cannot be written or is full: a cache may forget."""
        secret = self._open()
        if secret is None:
            return
        try:
            self._write(kind, key, sealed(body, secret, kind, key))
        except OSError as error:
            self._report(CacheNotWritten(folder=self.folder, problem=reason(error)))

    def file(self, kind: str, name: str) -> Path | None:
        """The path of a file named after its contents (`put_file`), or None. For what must be opened by name."""
        secret = self._open()
        data = self._read(kind, name) if secret is not None else None
        if data is None or secret is None:
            return None
        if not hmac.compare_digest(_file_name(data, secret), name):
            remove_file(self.path(kind, name))
            return None
        return self.path(kind, name)

    def put_file(self, kind: str, body: bytes) -> Path:
        """Store the contents as they are, under a name made of them and the key of the folder.

        Raises OSError where the folder is not used or cannot be written.
        """
        secret = self._open()
        if secret is None:
            raise FileNotFoundError("the cache folder is not used")
        name = _file_name(body, secret)
        self._write(kind, name, body)
        return self.path(kind, name)

    def entries(self) -> Iterator[StoredEntry]:
        """Every file of the store; those that vanish meanwhile are left out."""
        for folder, _, names in os.walk(self.folder or ""):
            for name in names:
                path = Path(folder, name)
                if not OWN_FILES.fullmatch(os.path.relpath(path, self.folder)):
                    continue
                with contextlib.suppress(OSError):
                    facts = path.lstat()
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
                remove_file(entry.path)
                removed += entry.size
        return removed

    def _count(self, size: int) -> None:
        self._written += size
        if self._written >= min(SWEEP_EVERY_BYTES, self.max_bytes):
            self._written = 0
            self.sweep()

    def usable_folder(self) -> Path | None:
        """The folder, where it is used; for files that are no entries."""
        return self.folder if self._open() is not None else None

    def _open(self) -> bytes | None:
        """The key of the folder, which is checked on first use; None where it is not used."""
        if self._key is None and not self._refused:
            try:
                if self.folder is None:
                    raise CacheNotWritten(folder="~/.cache/kiln", problem="this user has no home folder")
                self._key = seal_key(self.folder)
            except KilnError as problem:
                self._refused = True
                self._report(problem)
        return self._key

    def _report(self, problem: KilnError) -> None:
        warn_once(problem.code, problem.render())

    def _read(self, kind: str, key: str) -> bytes | None:
        """The bytes of a private file, which is then marked as used; any other kind of file is removed."""
        path = self.path(kind, key)
        try:
            opened = open_private(path)
        except OSError:
            return None
        if opened is None:
            remove_file(path)
            return None
        descriptor, facts = opened
        data: bytes | None = None
        with os.fdopen(descriptor, "rb") as file, contextlib.suppress(OSError):
            data = file.read() if facts.st_size <= self.max_bytes else None
            if time.time() - facts.st_mtime > MARK_USED_AFTER:
                os.utime(path)  # raises where the folder is mounted read-only
        return data

    def _write(self, kind: str, key: str, data: bytes) -> None:
        path = self.path(kind, key)
        for folder in (path.parent.parent, path.parent):
            make_private(folder)
            check_entry_folder(folder)
        with written_aside(path, data) as part:  # readers see the old file, the new file or none
            os.replace(part, path)
        self._count(len(data))


def check_entry_folder(folder: Path) -> None:
    """Raises OSError where others may write into it or it is a link to elsewhere."""
    try:
        check_private(folder)
    except KilnError as problem:
        raise PermissionError(problem.reason) from problem
    close_to_others(folder)


def sealed(body: bytes, secret: bytes, kind: str, key: str) -> bytes:
    """The contents behind a header that only holders of the secret can make."""
    return HEADER.pack(MAGIC, len(body), _seal(body, secret, kind, key)) + body


def unsealed(data: bytes, secret: bytes, kind: str, key: str) -> bytes | None:
    """The contents, or None when they were not sealed with this secret as this entry."""
    if len(data) < HEADER.size:
        return None
    magic, length, seal = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if magic != MAGIC or len(body) != length or not hmac.compare_digest(seal, _seal(body, secret, kind, key)):
        return None
    return body


def _seal(body: bytes, secret: bytes, kind: str, key: str) -> bytes:
    """BLAKE2b in its keyed mode, which is a message authentication code, over the entry's name and contents."""
    digest = hashlib.blake2b(content_key(kind, key).encode(), key=secret, digest_size=32)
    digest.update(body)
    return digest.digest()


def _file_name(body: bytes, secret: bytes) -> str:
    return hashlib.blake2b(body, key=secret, digest_size=16).hexdigest()
