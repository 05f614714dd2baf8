"""Reports are made from events alone."""

from __future__ import annotations

import json

from kiln.report import Report
from kiln.support.events import EventSink


def recorded() -> Report:
    events, report = EventSink(), Report("f")
    events.listen(report.record)
    events.emit("compile")
    events.emit("region")
    events.emit("kernels", count=3)
    for line in range(20):
        events.emit("graph_break", code="KILN1007", at=f"m.py:{line}, in f", reason="`if` asks for a value")
    return report


def test_text_has_a_summary_and_some_of_each_kind() -> None:
    lines = recorded().text().splitlines()
    assert len(lines) == 3 + 8 + 1
    assert lines[0] == "kiln: f  1 regions, 1 compiles, 0 eager"
    assert lines[-1].startswith("... and 12 more")


def test_json_keeps_every_break() -> None:
    data = json.loads(recorded().to_json())
    assert data["schema"] == 1
    assert len(data["breaks"]) == 20
    assert data["kernels"] == 3


def test_what_holds_for_every_call_is_kept_once() -> None:
    events, report = EventSink(), Report("f")
    events.listen(report.record)
    for _ in range(1000):
        events.emit("eager", code="KILN1094", reason="a mode is active", hint="leave it")
    assert len(report.eager_reasons) == 1 and report.eager == 1000
    assert "eager KILN1094 a mode is active (x1000)" in report.text()
    (entry,) = json.loads(report.to_json())["eager_reasons"]
    assert (entry["code"], entry["times"]) == ("KILN1094", 1000)


def test_stage_times_add_up() -> None:
    events, report = EventSink(), Report("f")
    stop = events.listen(report.record)
    for _ in range(2):
        with events.stage("lowering"):
            pass
    stop()
    with events.stage("lowering"):
        pass
    assert list(report.seconds) == ["lowering"]
    assert sum(event.kind == "stage" for event in events.events) == 3


def test_seconds_of_stages_add_up_to_the_total() -> None:
    events, report = EventSink(), Report("f")
    events.listen(report.record)
    with events.stage("compile"), events.stage("capture"), events.stage("lowering"):
        sum(range(10000))
    assert list(report.seconds) == ["lowering", "capture", "compile"]
    assert abs(sum(report.seconds.values()) - report.total_seconds) < 1e-9


def test_times_of_nothing_are_a_sentence() -> None:
    assert "seconds: other 0.000; total 0.000" in Report("f").text().split("\n")
