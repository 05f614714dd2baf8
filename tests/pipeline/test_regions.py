"""Kernels compile while guards and files are made; regions are finished afterwards."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import kiln
from kiln.api import session_of
from kiln.build import cpp_compile as libraries
from kiln.build.cpp_compile import start_compile
from kiln.build.toolchain import Toolchain
from kiln.pipeline import captured, compiled_region
from kiln.pipeline.captured import FACTS, Captured, FrameCapture
from kiln.pipeline.compiled_region import CompiledRegion, finish_regions
from kiln.pipeline.session import KilnWarning
from kiln.plan.plan import Kernel
from kiln.runtime.cache.store import DiskStore
from kiln.support.errors import InternalFault
from kiln.support.events import Event, EventSink


def double(x: torch.Tensor) -> torch.Tensor:
    return x + x.exp()


def test_a_compiler_that_fails_leaves_eager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libraries, "toolchain", lambda seconds: Toolchain(("/bin/false",), "0", ()))
    x = torch.randn(5)
    compiled = kiln.compile(double, options={"cache": True, "cache_dir": str(tmp_path)})
    with pytest.warns(KilnWarning, match="KILN4102"):
        assert torch.equal(compiled(x), double(x))
    assert torch.equal(compiled(x), double(x))


def test_code_gets_what_runs_the_region() -> None:
    region = CompiledRegion(lambda: lambda *inputs: inputs)
    made = (lambda x: x).__code__
    function = type(double)(made.replace(co_consts=(region, 1)), {})
    with pytest.raises(InternalFault):
        region(1)
    finish_regions(function, [region])
    assert function.__code__.co_consts[0](3) == (3,) and function.__code__.co_consts[1] == 1


def test_guards_are_made_while_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    kept = compiled_region.finish_regions

    def noted(function: object, regions: object) -> None:
        stages.append("finish")
        kept(function, regions)  # type: ignore[arg-type]

    monkeypatch.setattr("kiln.pipeline.variant_compile.finish_regions", noted)
    record = EventSink.record

    def listen(self: EventSink, event: object) -> None:
        stages.append(event.stage if event.kind == "stage" else event.kind)  # type: ignore[attr-defined]
        record(self, event)  # type: ignore[arg-type]

    monkeypatch.setattr(EventSink, "record", listen)
    kiln.compile(double)(torch.randn(7))
    assert stages.index("guards") < stages.index("finish") < stages.index("compiled_kernels")


def test_compilers_that_nobody_waits_for_are_stopped(tmp_path: Path) -> None:
    kernel = Kernel("k_unwaited", "cpp", 'extern "C" void k_unwaited() {}', (), 0)
    work = start_compile([kernel], DiskStore(tmp_path), EventSink())
    folder, process = work.units[0].folder, work.units[0].process
    del work
    gc.collect()
    assert process.poll() is not None and not folder.exists()


def test_the_cause_of_an_eager_run_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error of the compiler, with its traceback."""
    events: list[Event] = []

    monkeypatch.setattr(captured, "compile_region", None)
    compiled = kiln.compile(double)
    session_of(compiled).events.listen(events.append)
    with pytest.warns(KilnWarning):
        assert torch.equal(compiled(torch.ones(2)), double(torch.ones(2)))
    (fault,) = [event for event in events if event.kind == "fault"]
    assert "Traceback" in fault.data["text"] and "'NoneType' object is not callable" in fault.data["text"]


def test_facts_of_a_variant_are_those_that_are_stored_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Captured] = []
    original = FrameCapture.capture

    def noted(self: FrameCapture, *arguments: Any, **keywords: Any) -> Captured:
        kept.append(original(self, *arguments, **keywords))
        return kept[-1]

    monkeypatch.setattr(FrameCapture, "capture", noted)
    kiln.compile(double)(torch.ones(3))
    (made,) = kept
    kinds = {kind for kind, _ in made.facts}
    assert kinds and kinds <= FACTS
