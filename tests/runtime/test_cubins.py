"""Triton kernels compiled ahead of time: what a launch needs to know, the store, errors."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kiln.build import cubins, triton_compile, triton_worker, triton_workers
from kiln.build.cubins import NoTriton, TritonRefused, start_cubins
from kiln.build.triton_workers import Worker, WorkerError, Workers
from kiln.plan.plan import Kernel
from kiln.runtime.cache.store import DiskStore
from kiln.runtime.kernels import Cubin
from kiln.support import optional
from kiln.support.events import EventSink
from kiln.support.optional import MissingPackage
from tests.runtime.triton_samples import GATHER, SCALE

pytest.importorskip("triton")


def test_a_cubin_comes_back_from_its_bytes() -> None:
    cubin = Cubin("k0", "PPi", True, 2, 4, 1024, 0, 90, b"\x7fELF\x00code")
    assert Cubin.decode(cubin.encode()) == cubin
    assert cubin.image() == ("k0", "PPi", True, 2, 128, 1024, 0, 90, cubin.code)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DiskStore:
    return DiskStore(tmp_path_factory.mktemp("cubins"))


def for_capability(kernel: Kernel, capability: int) -> Kernel:
    return replace(kernel, meta=tuple(sorted({**dict(kernel.meta), "capability": capability}.items())))


@pytest.mark.slow  # imports Triton and LLVM
def test_two_kinds_of_gpu(store: DiskStore) -> None:
    for capability in (80, 90):
        scale, gather = (for_capability(plan, capability) for plan in (SCALE, GATHER))
        made = start_cubins([scale, gather, scale], store, EventSink(), workers=2).wait()
        assert {symbol: value.letters for symbol, value in made.items()} == {"t_scale": "ppif", "t_gather": "pppqip"}
        for symbol, value in made.items():
            assert value.code.startswith(b"\x7fELF") and value.entry == symbol
            assert (value.num_warps, value.scratch_bytes) == (4, 0) and value.trailing in (0, 1, 2)
            assert value.capability == capability and value.status == (symbol == "t_gather")
            assert Cubin.decode(value.encode()) == value


@pytest.mark.slow
def test_kernels_of_one_code_share_a_cubin(tmp_path: Path) -> None:
    """Names and the comment at the head do not matter."""
    source = "# kernel over (i0: 4096)\n" + SCALE.source.replace("t_scale", "t_again")
    again = replace(SCALE, symbol="t_again", source=source)
    made = start_cubins([SCALE, again], DiskStore(tmp_path), EventSink()).wait()
    assert made["t_scale"] is made["t_again"]
    other = replace(SCALE, source=SCALE.source.replace("tl.load", "tl. load"))
    assert cubins.cubin_key(other) != cubins.cubin_key(SCALE) == cubins.cubin_key(again)


WARM = """
import sys
from kiln.runtime.cache.store import DiskStore
from kiln.build.cubins import start_cubins
from kiln.support.events import EventSink
from tests.runtime.triton_samples import SCALE
work = start_cubins([SCALE], DiskStore(sys.argv[1]), EventSink())
assert not work.running and work.wait()["t_scale"].entry == "t_scale"
assert "triton" not in sys.modules
print("warm")
"""


@pytest.mark.slow
def test_a_warm_start_imports_no_triton(store: DiskStore) -> None:
    start_cubins([SCALE], store, EventSink()).wait()
    done = subprocess.run(
        [sys.executable, "-c", WARM, str(store.folder)], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.stdout.strip() == "warm", done.stderr


@pytest.mark.slow
def test_what_triton_refuses_is_a_coded_error(store: DiskStore) -> None:
    bad = replace(
        SCALE, symbol="t_bad", source="import triton\n@triton.jit\ndef t_bad(x, out, n, factor, BLOCK):\n  y\n"
    )
    with pytest.raises(TritonRefused, match=r"KILN4105[\s\S]*t_bad"):
        start_cubins([bad], store, EventSink()).wait()


def test_types_that_cannot_be_passed(store: DiskStore) -> None:
    odd = replace(SCALE, meta=(("signature", ("*fp32", "tensordesc<fp32[4]>")),))
    with pytest.raises(TritonRefused, match="tensordesc"):
        cubins.parameter_letters(odd)


def test_a_machine_without_triton(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str, *, purpose: str) -> None:
        raise MissingPackage(package=package, purpose=purpose)

    monkeypatch.setattr(triton_compile, "load_required", missing)
    other = replace(SCALE, source=SCALE.source + "another = 1\n")
    with pytest.raises(NoTriton, match="KILN4104"):
        start_cubins([other], store, EventSink(), workers=1).wait()
    assert optional.load("triton") is not None


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.stop()


@pytest.mark.slow
def test_workers(workers: Workers) -> None:
    meta = dict(SCALE.meta)
    here = triton_compile.compile_source(SCALE.source, SCALE.symbol, meta)
    assert workers.compile(SCALE.source, SCALE.symbol, meta) == here
    with pytest.raises(WorkerError, match="NameError"):
        workers.compile("import triton\n\n\nundefined\n", "t_bad", meta)
    end_server(workers)
    assert workers.compile(SCALE.source, SCALE.symbol, meta)["cubin"] == here["cubin"]  # the worker survives
    (worker,) = workers.idle
    worker.channel.shutdown(socket.SHUT_WR)
    worker.stream.read()  # until it has ended
    assert workers.compile(SCALE.source, SCALE.symbol, meta)["cubin"] == here["cubin"]
    workers.start(2)
    assert len(workers.idle) == 2


def end_server(workers: Workers) -> None:
    assert workers.server is not None
    workers.server.process.kill()
    workers.server.process.wait()


THREADED = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); "


@pytest.mark.slow
def test_a_server_with_threads_is_not_forked(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers are started as new programs."""
    monkeypatch.setattr(triton_workers, "STARTER", THREADED + triton_worker.STARTER)
    assert workers.compile(SCALE.source, SCALE.symbol, dict(SCALE.meta))["entry"] == "t_scale"


@pytest.mark.slow
def test_a_server_without_work_ends(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = triton_worker.STARTER.replace("; {function}", "; {function}.__globals__['IDLE_SECONDS'] = 0.2; {function}")
    monkeypatch.setattr(triton_workers, "STARTER", hasty)
    assert workers.compile(SCALE.source, SCALE.symbol, dict(SCALE.meta))["entry"] == "t_scale"
    assert workers.server is not None and workers.server.process.wait(10) == 0
    assert workers.compile(SCALE.source, SCALE.symbol, dict(SCALE.meta))["entry"] == "t_scale"


def test_the_stages_are_those_of_triton() -> None:
    """Triton's own pipeline gives the same stages without a cubin."""
    meta = dict(SCALE.meta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optional.load_required("triton", purpose="tests"), "compile", None)
        made = triton_compile.compile_source(SCALE.source, SCALE.symbol, meta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_compile, "without_cache", None)
        assert triton_compile.compile_source(SCALE.source, SCALE.symbol, meta) == made


def test_workers_start_only_where_a_gpu_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    told = threading.Event()
    made = Workers()

    def start(count: int) -> None:
        started.append(count)
        told.set()

    monkeypatch.setattr(made, "start", start)
    monkeypatch.setattr(cubins, "shared_workers", lambda: made)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    cubins.prepare_compiling()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    cubins.prepare_compiling(1)
    cubins.prepare_compiling(3)
    assert told.wait(10) and started == [3]


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_an_error(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_workers, "STARTER", "raise SystemExit(1)")
    with pytest.raises(WorkerError, match="has ended"):
        workers.compile(SCALE.source, SCALE.symbol, dict(SCALE.meta))


def test_where_no_process_can_be_started(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError("no process")

    monkeypatch.setattr(triton_workers.subprocess, "Popen", refuse)
    monkeypatch.setattr(triton_workers, "compile_source", lambda *args: {"symbol": args[1]})
    workers.start(2)
    assert workers.idle == [] and workers.compile("", "t_here", {}) == {"symbol": "t_here"}


def test_without_worker_processes_this_one_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def refuse(source: str, symbol: str, meta: Any) -> dict[str, Any]:
        asked.append(symbol)
        raise ValueError("here")

    monkeypatch.setattr(cubins, "can_start_workers", lambda: False)
    monkeypatch.setattr(cubins, "shared_workers", lambda: pytest.fail("there are no workers"))
    monkeypatch.setattr(cubins, "compile_source", refuse)
    with pytest.raises(TritonRefused, match="here"):
        start_cubins([SCALE], DiskStore(tmp_path), EventSink()).wait()
    assert asked == ["t_scale"]


def test_an_idle_worker_is_alive_until_its_channel_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(ours, ours.makefile("rwb"))
        assert worker.is_alive()
        theirs.close()
        assert not worker.is_alive()
