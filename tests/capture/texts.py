"""All results of captures as texts."""

from __future__ import annotations

from typing import Any

from kiln.capture.interpreter import Capture
from kiln.graph.ir.text import graph_text


def texts(captures: list[Capture]) -> dict[str, str]:
    """All results of a capture except the number of opcodes."""
    found: dict[str, list[str]] = {}

    def add(name: str, lines: Any) -> None:
        found.setdefault(name, []).extend(lines)

    for capture in captures:
        add("guards", [f"{guard.text()} {guard.location}" for guard in capture.guards])
        add("collect", [source.text() for source in capture.collect])
        add("breaks", [f"{stop.code} {stop.at}" for stop in capture.breaks])
        for region in capture.regions:
            trace = region.trace
            add("graph", [graph_text(trace.graph)])
            add("torch", [trace.torch_graph().code])
            add("inputs", [f"{record.name} {record.source.text()} {record.used}" for record in trace.inputs])
            add("calls", [f"{call.name} {call.effects} {[at.text() for at in call.stack]}" for call in trace.calls])
    return {name: "\n".join(lines) for name, lines in found.items()}
