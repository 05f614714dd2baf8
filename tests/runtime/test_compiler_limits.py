"""Compilers that hang, need too much memory or have no folder to work in: a code, and the program runs eager."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kiln
from kiln.build import limits
from kiln.build.limits import CompileLimits, CompilerOutOfMemory, CompilerTooSlow, end_group, output_of, start_limited
from kiln.build.toolchain import asked_toolchain
from kiln.build.triton_workers import Workers
from kiln.pipeline.session import KilnWarning

HANGS = "#!/bin/sh\necho $$ >> {pids}\nsleep 600 &\necho $! >> {pids}\nwait\n"
HANGS_LATER = '#!/bin/sh\n[ "$1" = --version ] && exec echo 12\n' + HANGS.partition("\n")[2]

FakeCompiler = Callable[[str], Path]


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCompiler]:
    """Installs a script as g++; returns the file to which it writes its process ids."""
    asked_toolchain.cache_clear()
    monkeypatch.delenv("CXX", raising=False)  # it would come before g++

    def install(script: str) -> Path:
        (tmp_path / "bin").mkdir()
        pids, path = tmp_path / "pids", tmp_path / "bin" / "g++"
        path.write_text(script.format(pids=pids))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
        return pids

    yield install
    asked_toolchain.cache_clear()


def assert_eager(code: str, folder: Path, **options: Any) -> None:
    """One warning with the code, and eager's results; later calls take no time."""
    x = torch.arange(4.0)
    settings = {"cache": False, "cache_dir": str(folder / "cache"), **options}
    compiled = kiln.compile(lambda x: torch.sin(x) * 3, options=settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(compiled(x), torch.sin(x) * 3)
    warned = [str(warning.message) for warning in caught if issubclass(warning.category, KilnWarning)]
    assert len(warned) == 1 and code in warned[0], warned


def assert_ended(pids: Path) -> None:
    """No process of the compiler is left."""
    for pid in map(int, pids.read_text().split()):
        for _ in range(100):
            state = Path(f"/proc/{pid}/stat")
            if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.02)
        else:
            raise AssertionError(f"process {pid} of the compiler runs on")


@pytest.mark.parametrize("script", [HANGS, HANGS_LATER])
def test_a_compiler_that_hangs(fake_compiler: FakeCompiler, tmp_path: Path, script: str) -> None:
    pids = fake_compiler(script)
    assert_eager("KILN4106", tmp_path, compile_seconds=1)
    assert_ended(pids)


def test_a_compiler_that_cannot_be_started(fake_compiler: FakeCompiler, tmp_path: Path) -> None:
    fake_compiler("#!/nowhere\n")
    assert_eager("KILN410", tmp_path)


def test_a_compiler_that_needs_too_much_memory(tmp_path: Path) -> None:
    assert_eager("KILN4107", tmp_path, compile_megabytes=48)


def test_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache folder or memory replaces it; without them there is a code."""

    def none_usable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    compiled = kiln.compile(torch.sin, options={"cache_dir": str(tmp_path / "cache")})
    for _ in range(2):  # the second session loads
        options = {"cache": True, "cache_dir": str(tmp_path / "cache")}
        compiled = kiln.compile(lambda x: torch.sin(x) * 3, options=options)
        assert torch.allclose(compiled(torch.ones(3)), torch.ones(3).sin() * 3)
        assert kiln.report_of(compiled).eager == 0
    monkeypatch.setattr(limits, "SPARE_FOLDER", "/nowhere")
    (tmp_path / "file").write_text("")
    assert_eager("KILN4108", tmp_path / "file")


def test_a_full_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert_eager("KILN4108", tmp_path)


def test_a_group_ends_with_all_that_it_started(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pids; wait"]
    process = start_limited(command, CompileLimits(), tmp_path)
    assert output_of(process, 0.5) is None
    assert_ended(tmp_path / "pids")
    end_group(process)


def test_memory_is_limited() -> None:
    process = start_limited(["/bin/sh", "-c", "ulimit -v"], CompileLimits(megabytes=100), None)
    assert output_of(process, 10) == str(100 << 10)


LOOP = """
import time
import triton
time.sleep(600)
"""


def test_triton_that_hangs() -> None:
    workers = Workers()
    try:
        with pytest.raises(CompilerTooSlow, match="KILN4106"):
            workers.compile(LOOP, "k", {}, CompileLimits(seconds=3))
        assert workers.idle == []
    finally:
        workers.stop()


def test_triton_that_needs_too_much_memory() -> None:
    workers = Workers()
    try:
        with pytest.raises(CompilerOutOfMemory, match="KILN4107"):
            workers.compile("raise MemoryError('out of memory') if len(bytes(8 << 30)) < 0 else 1", "k", {})
    finally:
        workers.stop()
