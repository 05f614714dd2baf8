"""A copy of the repository in which a mutant is tested, so that the original never changes.

    copy = TreeCopy(root, folder)
    with copy.mutated(mutant):
        copy.run(["tests/fusion"], seconds=60)          Verdict("caught", "tests/fusion/test_memory.py::test_reuse")

Tests run in a fork of this process, which has imported torch but nothing of Kiln. Modules that did not change come from
their bytecode files; the bytecode of the mutated one is put aside. The tests' home and temporary folders are the copy's
own and empty at each start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Literal, final

import pytest

from tools.mutate.mutants import Mutant

Status = Literal["caught", "survived", "timeout", "untested", "broken"]
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*", "kiln_dump", "kiln_reproducers")
OPTIONS = ("-x", "-vv", "-p", "no:cacheprovider", "-W", "ignore", "--tb=no", "-rfE")
"""A test that ends the process is the last whose name is written."""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """`by`: the test that failed, or in which the process ended.

    broken: the tests could not run at all (the sources do not build, no test found).
    """

    status: Status
    by: str = ""


@final
class TreeCopy:
    """`around/tree` is the copy, `around/own` what its tests take for their home and temporary folders."""

    def __init__(self, root: Path, around: Path) -> None:
        self.root = root
        self.folder = around / "tree"
        self._own = around / "own"
        self._output = around / "output.txt"
        self.folder.mkdir(parents=True)
        for path in root.iterdir():
            if path.is_dir() and path.name != "build" and not path.name.startswith("."):
                shutil.copytree(path, self.folder / path.name, symlinks=True, ignore=NOT_COPIED)
            elif path.is_file():
                shutil.copy2(path, self.folder)

    def environment(self) -> dict[str, str]:
        """For tests: nothing leads to the original or to another copy."""
        shutil.rmtree(self._own, ignore_errors=True)
        for name in ("home", "tmp"):
            (self._own / name).mkdir(parents=True)
        entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        kept = [entry for entry in entries if entry and Path(entry).resolve() != self.root]
        return {
            "HOME": str(self._own / "home"), "TMPDIR": str(self._own / "tmp"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(self.folder), *kept]),
        }  # fmt: skip

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The source is changed; what was made of the original is put aside and comes back."""
        path = self.folder / mutant.path
        source, times = path.read_bytes(), path.stat()
        made = [made for made in self._made_of(path) if made.exists()]
        for file in made:
            file.rename(file.with_name(file.name + ".aside"))
        path.write_bytes(mutant.applied(source))
        try:
            yield
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            for file in self._made_of(path):
                file.unlink(missing_ok=True)
            for file in made:
                file.with_name(file.name + ".aside").rename(file)

    def _made_of(self, path: Path) -> list[Path]:
        if path.suffix == ".py":
            return [Path(cache_from_source(str(path)))]
        if path.suffix != ".cpp":
            return []
        self._take_objects()
        name = path.relative_to(self.folder).with_suffix(".o")
        objects = [folder / name for folder in (self.folder / "build").glob("temp*")]
        return [*objects, *(self.folder / "kiln" / "native").glob(f"_{path.parent.name}.*.so")]

    def _take_objects(self) -> None:
        """The original's object files: then a change of one C++ file compiles one."""
        for part in (self.root / "build").glob("temp*"):
            if not (self.folder / "build" / part.name).exists():
                shutil.copytree(part, self.folder / "build" / part.name)

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
        environment = self.environment()
        child = os.fork()
        if child == 0:
            self._run_in_child(tests, environment, write_bytecode)
        status = wait(child, seconds)
        if status is None:
            return Verdict("timeout")
        text = self._output.read_text(errors="replace")
        failed = [
            named(line.partition(" ")[2], tests) for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))
        ]
        started = [named(line, tests) for line in text.splitlines() if line.startswith("tests/")]
        if status == 0:
            return Verdict("survived")
        if status == 5 or (status == 4 and "ERROR: not found: " in text):
            return Verdict("broken", text[-300:])
        return Verdict("caught", [*failed, *reversed(started), f"exit status {status}"][0])

    def _run_in_child(self, tests: Sequence[str], environment: Mapping[str, str], write_bytecode: bool) -> None:
        os.setsid()
        os.chdir(self.folder)
        os.environ.update(environment)
        sys.dont_write_bytecode = not write_bytecode
        sys.path[:] = [str(self.folder), *[entry for entry in sys.path if Path(entry).resolve() != self.root]]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tools", "tests", "kiln")]:
            del sys.modules[name]
        out = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        status = 3
        try:
            status = int(pytest.main([*OPTIONS, *tests]))
        finally:
            sys.stdout.flush()
            os._exit(status)

    def record(self, tests: Sequence[str], calls: Path, seconds: float) -> None:
        """Add to `calls` which functions the tests call."""
        options = ["-q", "-p", "no:cacheprovider", "-p", "tools.mutate.calls", "--calls", str(calls)]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        with self._output.open("w") as out:
            child = subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **self.environment()}, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        wait(child.pid, seconds)


def named(line: str, tests: Sequence[str]) -> str:
    """The test with which a line of output begins; its name may have spaces in it."""
    return max([test for test in tests if line.startswith(test)], key=len, default=line.split(" ")[0])


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
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
