"""The C++ compiler: CXX, g++, clang++, then the one of a package; all make kernels that give the same results."""

from __future__ import annotations

import errno
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import kiln
from kiln.build import toolchain as compilers
from kiln.build.toolchain import CLANG_HEADER, asked_toolchain, compiler_command, compiler_file, toolchain


@pytest.fixture(autouse=True)
def ask_again() -> Iterator[None]:
    for cached in (asked_toolchain, compiler_file):
        cached.cache_clear()
    yield
    for cached in (asked_toolchain, compiler_file):
        cached.cache_clear()


def program(folder: Path, name: str, says: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho {says}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(compilers, "ZIG", "no_such_package")
    monkeypatch.delenv("CXX", raising=False)
    assert compiler_command() is None and toolchain() is None
    package = program(tmp_path / "package", "zig").with_name("__init__.py")
    package.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(compilers, "ZIG", "package")
    importlib.invalidate_caches()
    assert compiler_command() == (str(tmp_path / "package" / "zig"), "cc")
    for name in ("clang++", "c++", "g++"):
        assert compiler_command() != (path := str(program(tmp_path / "bin", name)),)
        assert compiler_command() == (path,)
    monkeypatch.setenv("CXX", f"{program(tmp_path, 'mine')} --fast")
    assert compiler_command() == (str(tmp_path / "mine"), "--fast")
    monkeypatch.setenv("CXX", "no_such_program")
    assert compiler_command() == (path,)


def test_a_failed_start_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(program(tmp_path, "mine", "g++ 12")))
    asked_toolchain.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(compilers, "start_limited", no_memory)
        assert toolchain() is None
    assert toolchain() is toolchain() is not None


def no_memory(*arguments: object) -> NoReturn:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_options_and_key_follow_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for says, is_clang in (("g++ 12", False), ("g++ 13", False), ("clang version 22", True)):
        asked_toolchain.cache_clear()
        monkeypatch.setenv("CXX", str(program(tmp_path, "mine", says)))
        found = toolchain()
        assert isinstance(found, compilers.Toolchain)
        assert (str(CLANG_HEADER) in found.options) == is_clang and ("-lgcc" in found.linked) != is_clang
        keys.add(found.key())
    assert len(keys) == 3


def test_arguments_of_the_compiler_are_in_both_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = (program(tmp_path, name, "g++ 12") for name in ("mine", "ccache"))
    monkeypatch.setenv("PATH", str(tmp_path))

    def keys(command: str) -> tuple[str, str]:
        asked_toolchain.cache_clear()
        compiler_file.cache_clear()
        monkeypatch.setenv("CXX", command)
        found = toolchain()
        assert isinstance(found, compilers.Toolchain)
        return found.key(), compiler_file()

    found = [keys(command) for command in (str(mine), "mine -O0", "mine -ffast-math", "ccache mine")]
    assert all(len(set(column)) == 4 for column in zip(*found, strict=True))
    mine.write_text(mine.read_text() + "# another\n")
    assert keys("ccache mine")[1] != found[-1][1]


def test_the_key_does_not_know_the_folder_of_the_package() -> None:
    def key(*options: str) -> str:
        return compilers.Toolchain(("clang++",), "clang 22 abc", options).key()

    assert key("-O3", "-include", str(CLANG_HEADER)) == key("-O3", "-include") != key("-include")


def many_kernels(x: Tensor, at: Tensor) -> list[Tensor]:
    wide = x.double()
    return [
        F.layer_norm(F.gelu(x), (48,)),
        x.exp() + x.abs().log() + x.tanh() + torch.erf(x) + x.sin() + x.sigmoid() + x.expm1() + x.log1p().nan_to_num(),
        x.gather(1, at) + wide.sqrt().nan_to_num().float() + x.t().contiguous(),
        x.bfloat16().softmax(-1).float() + x.half().cumsum(0).float() + wide.cumsum(-1).float(),
        torch.where(wide > 0, wide, at.double()) + at // 3 + at % 7 + at.cumsum(-1),
        x.to(torch.int8) + x.abs().to(torch.uint8) + at.to(torch.int16),
        torch.zeros_like(x).scatter_add(1, at, x) + x.var(0) + x.logsumexp(1) + x.amin(0) + x.argmax(-1),
        (x > 0).any(0) & (x < 3).all(1),
    ]


def results(arguments: tuple[Tensor, Tensor], folder: Path) -> list[Tensor]:
    asked_toolchain.cache_clear()
    compiled = kiln.compile(many_kernels, options={"cache": False, "cache_dir": str(folder)})
    made = compiled(*arguments)
    assert kiln.report_of(compiled).eager == 0
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ziglang", "clang++"])
def test_the_kernels_of_clang_have_the_results_of_gcc(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec("ziglang") if kind == "ziglang" else shutil.which(kind)
    if not found or not shutil.which("g++"):
        pytest.skip(f"needs {kind} and g++")
    arguments = torch.randn(48, 48), torch.randint(0, 48, (48, 48))
    monkeypatch.setenv("CXX", "g++")
    expected = results(arguments, tmp_path / "gcc")
    monkeypatch.setenv("CXX", "" if kind == "ziglang" else kind)
    if kind == "ziglang":
        monkeypatch.setattr(compilers, "PROGRAMS", ())
        monkeypatch.delenv("HOME", raising=False)
    torch.testing.assert_close(results(arguments, tmp_path / "clang"), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("version", "flags", "copies"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022", {"avx2"}, True),
        ("c++ (GCC) 14.1.1 20240607 (Red Hat 14.1.1-5)", {"avx", "avx2"}, True),
        ("g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0", {"avx2"}, False),
        ("g++ (GCC) 13.2.0", {"avx2", "avx512f"}, False),
        ("g++ (GCC) 13.2.0", set(), False),
        ("something else", {"avx2"}, False),
    ],
)
def test_copies_of_whole_registers(version: str, flags: set[str], copies: bool) -> None:
    """Only GCC from 12 on knows these options, and AVX-512 has other vectors."""
    assert bool(compilers.copies_of(version, flags)) is copies
