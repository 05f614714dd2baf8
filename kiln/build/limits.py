"""Limits on the compilers that Kiln starts: time by the clock, and memory of each process.

process = start_limited(["g++", ...], limits, folder)
end_group(process)                                    # with all that it has started
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import final

from kiln.runtime.cache.private_folder import reason
from kiln.runtime.cache.store import DiskStore
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

SHELL = "/bin/sh"
LIMITED = 'ulimit -v "$1" 2>/dev/null; shift; exec "$@"'
"""Limits a process before its program starts: without a shell, what the program starts first would be unlimited."""
NO_MEMORY = re.compile(
    r"out of memory|[Cc]annot allocate|memory exhausted|failed to map|bad_alloc|MemoryError|\bKilled\b"
)
"""What compilers say that got no more memory."""
SPARE_FOLDER = "/dev/shm"


class CompilerTooSlow(KilnError):
    code = "KILN4106"
    what = "{compiler} was stopped after {seconds} seconds"
    why = "it had not finished {work}"
    try_ = ("raise the limit: options={{'compile_seconds': ...}}", "run it by hand: it may be broken")


class CompilerOutOfMemory(KilnError):
    code = "KILN4107"
    what = "{compiler} needed more than {megabytes} MB"
    why = "compiling {work}, it said: {message}"
    try_ = ("raise the limit: options={{'compile_megabytes': ...}}",)


class NoWorkingFolder(KilnError):
    code = "KILN4108"
    what = "kernels cannot be compiled without a folder for temporary files"
    why = "{problem}"
    try_ = ("set TMPDIR to a folder that you can write and that has space",)


CACHES = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
"""Variables that name the folders where a compiler keeps files; it looks for a home folder without them."""


@final
@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Of each process of g++ and each kernel of Triton; 0: no limit."""

    seconds: int = 300
    megabytes: int = 4096

    def timeout(self, spent: float = 0.0) -> float | None:
        """Seconds that are left; at least one, in which a process that ended long ago is read."""
        return max(1.0, self.seconds - spent) if self.seconds else None


def start_limited(command: Sequence[str], limits: CompileLimits, folder: Path | None) -> subprocess.Popen[bytes]:
    """The program in a process group of its own, output and errors in one pipe; temporary files go to `folder`.

    Raises OSError.
    """
    if limits.megabytes and os.access(SHELL, os.X_OK):
        command = [SHELL, "-c", LIMITED, "sh", str(limits.megabytes << 10), *command]
    place = dict.fromkeys(("TMPDIR", *CACHES), str(folder))
    environment = {**os.environ, **place} if folder is not None else None
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        process_group=0,
    )


def output_of(process: subprocess.Popen[bytes], timeout: float | None) -> str | None:
    """What the process has written when it has ended; None, and its group is ended, where it takes longer."""
    try:
        return process.communicate(timeout=timeout)[0].decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        end_group(process)
        return None


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that `start_limited` started, and what it has started."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def working_folder(store: DiskStore) -> Path:
    """A new private folder in the temporary folder, else in the cache or in memory. Raises NoWorkingFolder."""
    problems: list[str] = []
    for place in (None, store.usable_folder(), SPARE_FOLDER):
        try:
            made = Path(tempfile.mkdtemp(prefix="kiln-kernels-", dir=place))
            made.chmod(0o700)  # whatever the umask
            return made
        except OSError as error:
            problems.append(reason(error))
    raise NoWorkingFolder(problem=problems[0])
