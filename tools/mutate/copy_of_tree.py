"""A copy of the repository in which a mutant is tested, so that the original never changes.

    copy = TreeCopy(root, folder)
    with copy.mutated(mutant):
        copy.run(["tests/fusion"], seconds=60)          Verdict("caught", "tests/fusion/test_memory.py::test_reuse")

Tests run in a fork of this process, which has imported torch but nothing of Kiln. Modules that did not change come from
their bytecode files; the bytecode of the mutated one is put aside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Literal, final

import pytest

from tools.mutate.mutants import Mutant

Status = Literal["caught", "survived", "timeout", "untested", "broken"]


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """`by`: the test that failed. broken: the tests could not run at all (the sources do not build, no test found)."""

    status: Status
    by: str = ""


@final
class TreeCopy:
    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
        )
        libraries = [str(path.relative_to(root)) for path in (root / "kiln" / "native").glob("*.so")]
        for name in [*filter(None, tracked.stdout.split("\0")), *libraries]:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (root / name).is_file():
                shutil.copy2(root / name, target)
        if (root / "build").exists():
            for part in (root / "build").glob("temp*"):  # object files: a C++ mutant compiles one of them again
                shutil.copytree(part, folder / "build" / part.name, dirs_exist_ok=True)
        self._output = folder / "output.txt"

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.path
        source, times = path.read_bytes(), path.stat()
        bytecode = Path(cache_from_source(str(path))) if path.suffix == ".py" else None
        aside = bytecode.with_suffix(".aside") if bytecode is not None and bytecode.exists() else None
        if bytecode is not None and aside is not None:
            bytecode.rename(aside)
        path.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            if bytecode is not None:
                bytecode.unlink(missing_ok=True)
                if aside is not None:
                    aside.rename(bytecode)

    def build(self, seconds: float) -> bool:
        """The extension, after a change of csrc/."""
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        try:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def run(self, tests: Sequence[str], seconds: float, *, write_bytecode: bool = False) -> Verdict:
        """The tests until the first that fails."""
        child = os.fork()
        if child == 0:
            self._run_in_child(tests, write_bytecode)
        status = wait(child, seconds)
        if status is None:
            return Verdict("timeout")
        text = self._output.read_text(errors="replace")
        failed = [line.split(" ")[1] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        if status == 0:
            return Verdict("survived")
        if status in (4, 5):
            return Verdict("broken", text[-300:])
        return Verdict("caught", failed[0] if failed else f"exit status {status}")

    def _run_in_child(self, tests: Sequence[str], write_bytecode: bool) -> None:
        os.setsid()
        os.chdir(self.folder)
        sys.dont_write_bytecode = not write_bytecode
        sys.path[:] = [str(self.folder), *[entry for entry in sys.path if not entry.startswith(str(Path.cwd()))]]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tools", "tests", "kiln")]:
            del sys.modules[name]
        out = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        status = 3
        try:
            status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--tb=no", "-rfE", *tests]))
        finally:
            sys.stdout.flush()
            os._exit(status)


def wait(child: int, seconds: float) -> int | None:
    """The exit status, of a signal its negative number; None after killing the child's process group."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what the tests left running
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
