"""Variants on disk: what one session compiled, another one loads and runs without a compile."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kiln
from kiln.api.compiler import SHARED, session_of
from kiln.report import Report
from kiln.runtime.cache.bundle import pack
from kiln.runtime.cache.private_folder import seal_key
from kiln.runtime.cache.store import sealed
from tests.persist.programs import PROGRAMS, pointwise, run

ROOT = Path(__file__).resolve().parents[2]


def compiled_run(name: str, folder: Path) -> tuple[list[Any], Report, list[str]]:
    """A program's result in a fresh session, its report, the stages it went through."""
    function, args, kwargs = PROGRAMS[name]()
    SHARED.clear()  # as in another process
    compiled = kiln.compile(function, options={"cache": True, "cache_dir": str(folder)})
    stages: list[str] = []
    session_of(compiled).events.listen(lambda event: stages.append(event.stage))
    result = run(compiled, args, kwargs)
    return result, kiln.report_of(compiled), stages


def assert_same(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for value, other in zip(got, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert value.dtype == other.dtype and torch.equal(value, other), (value, other)
        else:
            assert value == other


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_session_compiles_nothing(name: str, tmp_path: Path) -> None:
    first, report, _ = compiled_run(name, tmp_path)
    assert report.unsaved == [] and report.compiles > 0 and report.eager == 0
    second, again, stages = compiled_run(name, tmp_path)
    assert_same(second, first)
    assert (again.compiles, again.loaded, again.eager) == (0, report.compiles, 0)
    assert "capture" not in stages and "lowering" not in stages
    assert [graph_break.code for graph_break in again.breaks] == [graph_break.code for graph_break in report.breaks]
    assert (again.regions, again.guards) == (report.regions, report.guards)
    if name != "differentiable":  # a backward is counted where it is compiled
        assert again.kernels == report.kernels


def in_process(folder: Path, file: Path, *names: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.persist.worker", str(folder), str(file), *names]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_what_is_loaded_from_disk_loads_no_compiler(tmp_path: Path) -> None:
    names = ("plain", "one_break", "speculation_holds", "differentiable")
    for name in names:
        compiled_run(name, tmp_path)
    assert in_process(tmp_path, tmp_path / "results", *names).wait() == 0
    found = torch.load(tmp_path / "results", weights_only=False)
    assert [(found[name]["compiles"], found[name]["compiler"]) for name in names] == [(0, [])] * len(names)


@pytest.mark.slow  # two processes; the first compiles everything
def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    written, read = tmp_path / "first", tmp_path / "second"
    for file in (written, read):
        assert in_process(tmp_path / "cache", file).wait() == 0
    first, second = torch.load(written, weights_only=False), torch.load(read, weights_only=False)
    assert list(first) == list(PROGRAMS)
    for name in PROGRAMS:
        assert (first[name]["unsaved"], first[name]["eager"], first[name]["loaded"]) == ([], 0, 0), name
        assert (second[name]["compiles"], second[name]["loaded"]) == (0, first[name]["compiles"]), name
        assert not {"capture", "joint", "lowering", "kernels"} & set(second[name]["stages"]), name
        assert not second[name]["compiler"], name
        assert_same(second[name]["result"], first[name]["result"])


@pytest.mark.slow
def test_processes_share_a_folder(tmp_path: Path) -> None:
    """Three processes that start together, empty cache: all are right, and a fourth finds everything."""
    names = ("plain", "closure", "one_break", "differentiable")
    files = [tmp_path / str(number) for number in range(3)]
    assert [process.wait() for process in [in_process(tmp_path / "cache", file, *names) for file in files]] == [0] * 3
    results = [torch.load(file, weights_only=False) for file in files]
    assert in_process(tmp_path / "cache", tmp_path / "last", *names).wait() == 0
    last = torch.load(tmp_path / "last", weights_only=False)
    for name in names:
        assert last[name]["compiles"] == 0, name
        for result in results:
            assert_same(result[name]["result"], last[name]["result"])


def source(name: str, text: str, folder: Path) -> Any:
    """Import `text` as module `name` from a file."""
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def loaded(function: Any, folder: Path, *args: Any) -> tuple[Any, int, int]:
    """Result, compiles and loads of a fresh session."""
    compiled = kiln.compile(function, options={"cache": True, "cache_dir": str(folder)})
    result = compiled(*args)
    report = kiln.report_of(compiled)
    return result, report.compiles, report.loaded


PROGRAM = """
import torch
SCALE = 2.0

def helper(x):
    return x + SCALE

def program(x):
    return helper(x) * 3
"""


@pytest.fixture
def clean_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("kiln_test_"):
            del sys.modules[name]


@pytest.mark.usefixtures("clean_modules")
def test_edited_code_compiles_again(tmp_path: Path) -> None:
    x = torch.randn(4)
    module = source("kiln_test_edit", PROGRAM, tmp_path)
    assert loaded(module.program, tmp_path / "cache", x)[1:] == (1, 0)
    assert loaded(module.program, tmp_path / "cache", x)[1:] == (0, 1)
    module.SCALE = 5.0
    result, *counts = loaded(module.program, tmp_path / "cache", x)
    assert counts == [1, 0] and torch.equal(result, (x + 5) * 3)
    module.helper = lambda x: x - 1
    result, *counts = loaded(module.program, tmp_path / "cache", x)
    assert counts == [1, 0] and torch.equal(result, (x - 1) * 3)
    module = source("kiln_test_edit", PROGRAM.replace("x + SCALE", "x - SCALE"), tmp_path)
    result, *counts = loaded(module.program, tmp_path / "cache", x)
    assert counts == [1, 0] and torch.equal(result, (x - 2) * 3)


def test_other_arguments_do_not_fit(tmp_path: Path) -> None:
    def program(x: torch.Tensor, flag: bool) -> torch.Tensor:
        return x * 2 if flag else x * 3

    x = torch.randn(3)
    assert loaded(program, tmp_path, x, True)[1:] == (1, 0)
    for args, counts in (((x, False), (1, 0)), ((x.double(), True), (1, 0)), ((torch.randn(4), True), (1, 0))):
        result, *found = loaded(program, tmp_path, *args)
        assert tuple(found) == counts and torch.equal(result, program(*args))
        assert loaded(program, tmp_path, *args)[1:] == (0, 1)


def test_sizes_seen_by_an_earlier_session_count(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert loaded(program, tmp_path, torch.randn(3))[1:] == (1, 0)
    compiled = kiln.compile(program, options={"cache": True, "cache_dir": str(tmp_path)})
    for size in (3, 5, 7, 9):
        assert compiled(torch.randn(size)).shape == (size,)
    report = kiln.report_of(compiled)
    assert (report.loaded, report.compiles) == (1, 1)


def test_damaged_files_are_misses(tmp_path: Path) -> None:
    x = torch.randn(4)
    assert loaded(pointwise, tmp_path, x)[1:] == (1, 0)
    (file,) = [path for path in (tmp_path / "variant").rglob("*") if path.is_file()]
    data, secret = file.read_bytes(), seal_key(tmp_path)
    no_variants = [sealed(body, secret, "variant", file.name) for body in (b"no bundle", pack({"checks": b"{}"}))]
    for bad in (b"", data[: len(data) // 2], data[:-1] + b"!", *no_variants):
        file.write_bytes(bad)
        result, *counts = loaded(pointwise, tmp_path, x)
        assert counts == [1, 0] and torch.equal(result, pointwise(x))
        for other in (tmp_path / "variant").rglob("*"):
            if other.is_file() and other != file:
                other.unlink()


def test_the_option_turns_it_off(tmp_path: Path) -> None:
    x = torch.randn(4)
    for _ in range(2):
        compiled = kiln.compile(pointwise, options={"cache": False, "cache_dir": str(tmp_path)})
        compiled(x)
        assert (kiln.report_of(compiled).compiles, kiln.report_of(compiled).loaded) == (1, 0)
    assert not (tmp_path / "variant").exists()


def test_what_cannot_be_written_has_a_reason(tmp_path: Path) -> None:
    class Local:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    def program(x: torch.Tensor) -> Local:
        return Local(x * 2)

    compiled = kiln.compile(program, options={"cache": True, "cache_dir": str(tmp_path)})
    assert torch.equal(compiled(torch.ones(3)).x, torch.full((3,), 2.0))
    report = kiln.report_of(compiled)
    assert (
        len(report.unsaved) == 1
        and report.unsaved[0].startswith("KILN6010")
        and "its code holds <class" in report.unsaved[0]
    )
    assert not (tmp_path / "variant").exists()


def local_class(factor: float) -> Any:
    class Local:
        def __init__(self) -> None:
            self.offset = 1.0

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * Local.factor + self.offset

    Local.factor = factor  # type: ignore[attr-defined]
    return Local


def test_a_class_local_to_a_function_is_found_where_its_object_is(tmp_path: Path) -> None:
    def program(x: torch.Tensor, local: Any) -> torch.Tensor:
        return local.scaled(x) * 2

    x = torch.randn(4)
    assert loaded(program, tmp_path, x, local_class(2.0)())[1:] == (1, 0)
    result, *counts = loaded(program, tmp_path, x, local_class(2.0)())
    assert counts == [0, 1] and torch.equal(result, (x * 2 + 1) * 2)
    derived = type("Local", (local_class(2.0),), {"__qualname__": "local_class.<locals>.Local", "__module__": __name__})
    for other, expected in ((local_class(3.0), x * 3 + 1), (derived, x * 2 + 1)):
        result, *counts = loaded(program, tmp_path, x, other())
        assert counts == [1, 0] and torch.equal(result, expected * 2)


@pytest.mark.usefixtures("clean_modules")
def test_what_the_program_does_not_use_may_be_edited(tmp_path: Path) -> None:
    x = torch.randn(4)
    module = source("kiln_test_parts", PROGRAM_IN_PARTS, tmp_path)
    assert loaded(module.program, tmp_path / "cache", x, module.Net())[1:] == (1, 0)
    same = ("# A comment.\n" + PROGRAM_IN_PARTS, PROGRAM_IN_PARTS.replace("x - 2", "x - 3"))
    for text in same:
        module = source("kiln_test_parts", text, tmp_path)
        assert loaded(module.program, tmp_path / "cache", x, module.Net())[1:] == (0, 1)
    for old, new in (("x + 5", "x + 6"), ("scale = 2.0", "scale = 3.0"), ("class Net(Base)", "class Net(Other)")):
        module = source("kiln_test_parts", PROGRAM_IN_PARTS.replace(old, new), tmp_path)
        result, *counts = loaded(module.program, tmp_path / "cache", x, module.Net())
        assert counts == [1, 0] and torch.equal(result, module.program(x, module.Net()))


PROGRAM_IN_PARTS = """
class Base:
    scale = 2.0
    def unused(self, x):
        return x - 2
class Other:
    scale = 7.0
class Net(Base):
    def shift(self, x):
        return x + 5
def unused(x):
    return x - 2
def program(x, net):
    return net.shift(x) * net.scale
"""


def why_missing(folder: Path, **options: Any) -> list[str]:
    """Why a fresh session does not find a program."""
    function, args, kwargs = PROGRAMS["plain"]()
    compiled = kiln.compile(function, options={"cache": True, "cache_dir": str(folder), **options})
    events = session_of(compiled).events
    run(compiled, args, kwargs)
    return [str(event.data["reason"]) for event in events.events if event.kind == "variant_missing"]


def test_a_miss_says_what_is_different(tmp_path: Path) -> None:
    (never,) = why_missing(tmp_path)
    assert never.endswith("was never stored")
    assert why_missing(tmp_path) == []
    assert why_missing(tmp_path, variants=3) == ["option variants was '8', is '3'"]


def test_a_candidate_that_does_not_fit_is_explained(tmp_path: Path) -> None:
    def program(x: torch.Tensor, count: int) -> torch.Tensor:
        return x * 2 if count == 3 else x

    options = {"cache": True, "cache_dir": str(tmp_path)}
    kiln.compile(program, options=options)(torch.ones(4), 3)
    compiled = kiln.compile(program, options=options)
    compiled(torch.ones(4), 5)
    events = session_of(compiled).events.events
    (reason,) = [str(event.data["reason"]) for event in events if event.kind == "variant_missing"]
    assert reason.startswith("variant 0: count is 5, and was 3 (read at ")


def test_what_a_loaded_variant_names_may_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guards are read only when a call misses, to explain why: what they name may be gone by then."""

    def call(x: torch.Tensor, scale: object) -> torch.Tensor:
        SHARED.clear()
        compiled = kiln.compile(rooted, options={"cache_dir": str(tmp_path)})
        result = compiled(x)
        monkeypatch.setattr(math, "sqrt", scale)
        torch.testing.assert_close(compiled(x), rooted(x))
        monkeypatch.undo()
        assert kiln.report_of(compiled).eager == 0
        assert "math.sqrt is" in str(kiln.report_of(compiled))
        return result

    first = call(torch.ones(2), lambda x: 100.0)
    assert torch.equal(call(torch.ones(2), lambda x: 200.0), first)


def rooted(x: torch.Tensor) -> torch.Tensor:
    return x * math.sqrt(4.0)
