"""A cache folder that only the user can write, and the secret key that seals what is in it.

    key = seal_key(Path("~/.cache/kiln"))     # 32 random bytes of the file `seal-key`, made on first use

Raises UnsafeCacheFolder where somebody else owns or may write the folder, CacheNotWritten where it cannot be made.
Folders have mode 0700 and files 0600, whatever the umask. docs/security.md says what this protects against.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from kiln.support.errors import KilnError
from kiln.support.location import user_stacklevel

KEY_FILE = "seal-key"
KEY_BYTES = 32
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS = stat.S_IRWXG | stat.S_IRWXO
ATTEMPTS = 5
"""Other processes may replace a bad key file at the same time."""


class UnsafeCacheFolder(KilnError):
    code = "KILN6004"
    what = "the cache folder {folder} is not used"
    why = "{problem}, so what it holds may come from somebody else"
    try_ = ("make a folder that only you can write: options={{'cache_dir': ...}}", "remove the folder")


class CacheNotWritten(KilnError):
    code = "KILN6005"
    what = "nothing is kept in the cache folder {folder}"
    why = "{problem}"
    try_ = ("name a folder that you can write: options={{'cache_dir': ...}}",)


class CacheWarning(UserWarning):
    """Programs run compiled, but every process compiles them; the text gives code and reason."""


@lru_cache(maxsize=64)
def warn_once(code: str, text: str) -> None:
    """`text`, once per process."""
    warnings.warn(text, CacheWarning, stacklevel=user_stacklevel())


def seal_key(folder: Path) -> bytes:
    """The key of a folder that is safe to use; makes both where they are missing.

    Raises UnsafeCacheFolder, CacheNotWritten.
    """
    try:
        make_private(folder)
        check_private(folder)
        if set(os.listdir(folder)) <= {KEY_FILE}:  # a folder with other things in it may be meant for others
            close_to_others(folder)
        for _ in range(ATTEMPTS):
            key = read_key(folder / KEY_FILE)
            if key is not None:
                return key
            write_key(folder)
    except (OSError, ValueError) as error:
        raise CacheNotWritten(folder=folder, problem=reason(error)) from error
    raise CacheNotWritten(folder=folder, problem=f"its file {KEY_FILE} cannot be replaced")


def make_private(folder: Path) -> None:
    """The folder and its missing parents, for the user only. Raises OSError."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_private(folder.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o700)  # whatever the umask


def reason(error: Exception) -> str:
    """What the operating system says, without the path."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def close_to_others(folder: Path) -> None:
    """Take from others the right to read. Raises OSError."""
    if folder.stat().st_mode & OTHERS:
        os.chmod(folder, 0o700)


def check_private(folder: Path) -> None:
    """Raises UnsafeCacheFolder, CacheNotWritten."""
    facts = folder.lstat()
    mode = stat.S_IMODE(facts.st_mode)
    if stat.S_ISLNK(facts.st_mode):
        raise UnsafeCacheFolder(folder=folder, problem="it is a symbolic link")
    if not stat.S_ISDIR(facts.st_mode):
        raise CacheNotWritten(folder=folder, problem="it is not a folder")
    if facts.st_uid != os.geteuid():
        raise UnsafeCacheFolder(folder=folder, problem=f"it belongs to user {facts.st_uid}")
    if facts.st_mode & OTHERS_WRITE:
        raise UnsafeCacheFolder(folder=folder, problem=f"others may write it (mode {mode:04o})")


def is_private_file(facts: os.stat_result) -> bool:
    """A regular file of the user that nobody else may write."""
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & OTHERS_WRITE


def open_private(path: Path) -> tuple[int, os.stat_result] | None:
    """A descriptor and the facts of a private file; None for any other kind of file. Raises OSError."""
    # O_NONBLOCK: opening a pipe must not wait for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:  # a symbolic link
            return None
        raise
    facts = os.fstat(descriptor)
    if is_private_file(facts):
        return descriptor, facts
    os.close(descriptor)
    return None


def read_key(path: Path) -> bytes | None:
    """The key, or None where there is none that only the user knows."""
    try:
        opened = open_private(path)
    except OSError:
        return None
    if opened is None:
        return None
    descriptor, facts = opened
    with os.fdopen(descriptor, "rb") as file:
        key = file.read(KEY_BYTES + 1)
    return key if len(key) == KEY_BYTES and not facts.st_mode & OTHERS else None


def write_key(folder: Path) -> None:
    """A new key in place of a missing or bad one; the first of several processes wins. Raises OSError."""
    path = folder / KEY_FILE
    with written_aside(path, secrets.token_bytes(KEY_BYTES)) as part:
        if path.is_symlink() or path.exists():
            if read_key(path) is None:  # a bad one; a good one is that of another process, made meanwhile
                os.replace(part, path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(part, path)


@contextlib.contextmanager
def written_aside(path: Path, data: bytes) -> Iterator[str]:
    """A private file beside `path` with `data`, to be put in its place; afterwards it is gone. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)  # whatever the umask
            file.write(data)
        yield name
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
