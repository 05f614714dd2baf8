"""Log and progress: what users see during a compile."""

from __future__ import annotations

import io
import sys
import time
import warnings

import pytest
import torch

import kiln
from kiln.api import compiler
from kiln.pipeline.session import KilnWarning
from kiln.report import ProgressBar, log_stages
from kiln.report import listeners as module
from kiln.support.events import Event, EventSink


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_log_prints_the_stages_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    events = EventSink()
    events.listen(log_stages(frozenset(("lowering", "graph_break"))))
    with events.stage("capture"):
        events.emit("graph_break", code="KILN1007")
        events.emit("note", text="not asked for")
    with events.stage("lowering"):
        events.emit("kernels", count=2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "kiln [capture] graph_break code=KILN1007"
    assert lines[1] == "kiln [lowering] kernels count=2"
    assert lines[2].startswith("kiln [lowering] stage ") and lines[2].endswith(" ms") and len(lines) == 3


def test_log_by_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KILN_LOG", "capture, guards")
    kiln.compile(lambda x: x + 1)(torch.ones(2))
    stages = {line.split("]")[0] for line in capsys.readouterr().err.splitlines()}
    assert stages == {"kiln [capture", "kiln [guards"} or stages == {"kiln [capture", "kiln [guards", "kiln [compile"}
    monkeypatch.delenv("KILN_LOG")
    kiln.compile(lambda x: x + 2)(torch.ones(2))
    assert capsys.readouterr().err == ""


def test_progress_appears_on_a_terminal_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(module, "REDRAW_SECONDS", 0.001)
    events, bar = EventSink(), ProgressBar("Net.forward", patience=0.01)
    events.listen(bar)
    with events.stage("g++"):
        deadline = time.monotonic() + 5
        while "g++" not in sys.stderr.getvalue() and time.monotonic() < deadline:  # type: ignore[attr-defined]
            time.sleep(0.01)
    bar.close()
    assert "kiln Net.forward 00:0" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_quick_compiles_and_files_show_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    for file, patience in ((Terminal(), 60.0), (io.StringIO(), 0.0)):
        monkeypatch.setattr(sys, "stderr", file)
        bar = ProgressBar("f", patience)
        time.sleep(0.01)
        bar.close()
        assert file.getvalue() == ""


def test_one_bar_per_compile_the_backward_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Bar:
        def __init__(self, title: str) -> None:
            made.append("open")

        def __call__(self, event: object) -> None:
            made.append("event")

        def close(self) -> None:
            made.append("close")

    monkeypatch.setattr(sys.modules["kiln.api.compiler"], "ProgressBar", Bar)
    compiled = kiln.compile(lambda x: torch.sin(x).sum())
    result = compiled(torch.ones(3, requires_grad=True))
    assert [value for value in made if value != "event"] == ["open", "close"]
    result.backward()
    assert [value for value in made if value != "event"] == ["open", "close"] * 2
    quiet = kiln.compile(lambda x: x + 1, options={"progress": False})
    quiet(torch.ones(3))
    assert made.count("open") == 2


def test_a_warning_is_given_once_and_names_the_function() -> None:
    def stubborn(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled = kiln.compile(stubborn)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            compiled(torch.ones(2, device="meta"))
    ours = [warning for warning in seen if issubclass(warning.category, KilnWarning)]
    assert len(ours) == 1 and "stubborn` runs eager: KILN" in str(ours[0].message)
    assert kiln.report_of(compiled).eager == 1 and "stubborn" in str(kiln.report_of(compiled))


def test_a_bar_ends_with_its_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[str] = []

    class Bar:
        def __init__(self, name: str) -> None:
            bars.append(f"open {name}")

        def __call__(self, event: Event) -> None: ...

        def close(self) -> None:
            bars.append("close")

    monkeypatch.setattr(compiler, "ProgressBar", Bar)
    compiled = kiln.compile(double, options={"progress": True})
    for size in (2, 3):
        compiled(torch.ones(size, dtype=torch.float64 if size == 3 else None))
    assert bars == ["open double", "close", "open double", "close"]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
