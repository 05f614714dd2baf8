"""Compiling kernels, and the store behind it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kiln.build.cpp_compile import KernelsDoNotCompile, balanced_groups, compile_kernels
from kiln.plan.reference import PythonExecutor
from kiln.runtime.cache.store import DiskStore, content_key
from kiln.runtime.executor import make_executor
from kiln.runtime.kernels import Libraries, MissingKernel
from kiln.support.events import EventSink
from tests.runtime.samples import ADD, GATHER, KERNELS, SCALE, add_norm, kernel


def compiled_counts(events: EventSink) -> list[tuple[object, object]]:
    return [
        (event.data["compiled"], event.data["cached"]) for event in events.events if event.kind == "compiled_kernels"
    ]


def test_kernels_are_compiled_once(tmp_path: Path) -> None:
    events, store = EventSink(), DiskStore(tmp_path)
    compile_kernels([ADD, SCALE, ADD], store, events)
    compile_kernels([SCALE, GATHER], store, events)
    compile_kernels([ADD, SCALE, GATHER], store, events)
    assert compiled_counts(events) == [(2, 0), (1, 1), (0, 3)]


def test_the_folder_can_be_moved(tmp_path: Path) -> None:
    events = EventSink()
    compile_kernels([ADD], DiskStore(tmp_path / "a"), events)
    os.rename(tmp_path / "a", tmp_path / "b")
    libraries = compile_kernels([ADD], DiskStore(tmp_path / "b"), events)
    assert compiled_counts(events) == [(1, 0), (0, 1)]
    x = torch.randn(2, 8)
    PythonExecutor(add_norm(), libraries)(x, x, torch.randn(8, 4))


def test_a_damaged_library_is_a_miss(tmp_path: Path) -> None:
    events, store = EventSink(), DiskStore(tmp_path)
    path = compile_kernels([ADD], store, events).files()[0]
    data = path.read_bytes()
    path.unlink()  # a new file: the old one is mapped into this process
    path.write_bytes(data[:-100])
    compile_kernels([ADD], store, events)
    assert compiled_counts(events) == [(1, 0), (1, 0)]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    libraries = compile_kernels([ADD], DiskStore(tmp_path / "file"), EventSink())
    assert libraries.address("k_add")
    assert all(path.exists() for path in libraries.files())


def test_errors_of_the_compiler_are_shown(tmp_path: Path) -> None:
    with pytest.raises(KernelsDoNotCompile, match=r"KILN4102[\s\S]*k_bad[\s\S]*nonsense"):
        compile_kernels([kernel("k_bad", "nonsense;", "")], DiskStore(tmp_path), EventSink())
    with pytest.raises(MissingKernel):
        compile_kernels([ADD], DiskStore(tmp_path), EventSink()).function("k_none")


def test_groups_are_balanced() -> None:
    kernels = [kernel(f"k{n}", " " * size, "") for n, size in enumerate((9000, 3000, 3000, 3000))]
    assert [[k.symbol for k in group] for group in balanced_groups(kernels, 2)] == [["k0"], ["k1", "k2", "k3"]]
    assert len(balanced_groups(KERNELS, 8)) == 1  # too little to be worth a second g++
    assert balanced_groups([], 2) == []


def test_entries_survive_only_intact(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.put("plan", "abcd", b"contents")
    assert store.get("plan", "abcd") == b"contents" and store.get("plan", "other") is None
    path = store.path("plan", "abcd")
    for damage in (b"", b"short", path.read_bytes()[:-1], path.read_bytes()[:-1] + b"!"):
        path.write_bytes(damage)
        assert store.get("plan", "abcd") is None
        assert not path.exists()
        store.put("plan", "abcd", b"contents")


def test_the_store_is_bounded(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, max_bytes=10_000)
    for n in range(20):
        store.put("plan", content_key(str(n)), bytes(1000))
        os.utime(store.path("plan", content_key(str(n))), (n, n))
    held = sum(entry.size for entry in store.entries())
    removed = store.sweep()
    assert sum(entry.size for entry in store.entries()) == held - removed
    assert sum(entry.size for entry in store.entries()) <= 10_000
    assert store.get("plan", content_key("19")) is not None and store.get("plan", content_key("0")) is None


def test_kernels_may_call_libm_and_libgcc(tmp_path: Path) -> None:
    body = "auto o = (float*)t[0]; o[0] = __builtin_erff((float)f[0]); o[1] = (float)(__int128)f[0];"
    libraries = compile_kernels([kernel("k_libm", body, "w", floats=1)], DiskStore(tmp_path), EventSink())
    assert libraries.address("k_libm")


def test_kernels_run_on_torchs_threads(libraries: Libraries) -> None:
    """After torch has used its threads, a split launch starts no others."""
    torch.set_num_threads(2)
    try:
        torch.randn(1 << 20).exp()
        before = set(os.listdir("/proc/self/task"))
        plan = add_norm()
        steps = (plan.steps[0], replace(plan.steps[1], grain=1), *plan.steps[2:])
        x = torch.randn(1000, 8)
        make_executor(replace(plan, steps=steps), libraries)(x, x, torch.randn(8, 4))
        assert set(os.listdir("/proc/self/task")) <= before
    finally:
        torch.set_num_threads(1)
