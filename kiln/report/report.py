"""What the compiler did for one compiled function, in ten lines or as JSON.

    kiln: Net.forward  2 regions, 3 compiles (1 recompile), 0 eager
    seconds: capture 0.10, graph 0.03, loops 0.12, g++ 1.10, other 0.02; total 1.37
    kernels: 6 (72 launches, 96 library calls), 12.4 MB read, 6.1 MB written
    break KILN1007 model.py:41, in Net.forward: `if` asks for the value of a tensor

It is made from events alone; no stage depends on it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import final

from kiln.support.events import Event

SCHEMA = 1
MAX_LINES = 10
SHOWN_STAGES = 6


@final
@dataclass(frozen=True, slots=True)
class Break:
    """A graph break or a skipped frame: code, user's line, reason."""

    code: str
    where: str
    reason: str


@final
@dataclass(slots=True)
class Report:
    """Counts over all compiles of one function.

    `seconds` is wall time by stage without inner stages, so its entries add up to `total_seconds`.
    """

    name: str = ""
    regions: int = 0
    compiles: int = 0
    loaded: int = 0
    """Variants loaded from disk."""
    eager: int = 0
    kernels: int = 0
    launches: int = 0
    library_calls: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    guards: int = 0
    graphs: int = 0
    """Live CUDA graphs, with `graph_bytes` of memory pools."""
    graph_bytes: int = 0
    ungraphed: dict[str, int] = field(default_factory=dict)
    """Why plans run without a CUDA graph, or get no more of them -> how many plans."""
    unsaved: list[str] = field(default_factory=list)
    """Why variants could not be stored on disk."""
    not_fused: list[Iterable[object]] = field(default_factory=list)
    """Why loops are not one kernel, program by program; the texts are made when they are read."""
    notes: list[str] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    total_seconds: float = 0.0

    def record(self, event: Event) -> None:
        """Count an event; kinds without a handler are ignored."""
        handler = HANDLERS.get(event.kind)
        if handler is not None:
            handler(self, event)

    def reset(self) -> None:
        """Forget everything but the name."""
        fresh = Report(self.name)
        for entry in fields(self):
            setattr(self, entry.name, getattr(fresh, entry.name))

    def text(self) -> str:
        """At most ten lines."""
        count = self.compiles - 1
        loaded = f", {self.loaded} loaded" if self.loaded else ""
        recompiles = f" ({count} recompile{'s' if count > 1 else ''})" if count > 0 else ""
        lines = [
            f"kiln: {self.name}  {self.regions} regions, {self.compiles} compiles{recompiles}{loaded}, "
            f"{self.eager} eager",
            self._seconds_line(),
            f"kernels: {self.kernels} ({self.launches} launches, {self.library_calls} library calls), "
            f"{self.bytes_read / 1e6:.1f} MB read, {self.bytes_written / 1e6:.1f} MB written; {self.guards} guards",
        ]
        lines += self._graph_lines()
        breaks = [f"break {found.code} {found.where}: {found.reason}" for found in self.breaks]
        rest = [*self.notes, *(f"{line} (x{n})" if n > 1 else line for line, n in Counter(breaks).items())]
        room = MAX_LINES - len(lines)
        if len(rest) > room:
            rest = [*rest[: room - 1], f"... and {len(rest) - room + 1} more (see the JSON form)"]
        return "\n".join([*lines, *rest])

    def _seconds_line(self) -> str:
        """The longest stages, and the others together."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        parts = [f"{name} {value:.3f}" for name, value in ordered[:SHOWN_STAGES]]
        rest = sum(value for _, value in ordered[SHOWN_STAGES:])
        return f"seconds: {', '.join(parts)}, other {rest:.3f}; total {self.total_seconds:.3f}"

    def _graph_lines(self) -> list[str]:
        """How many CUDA graphs there are and why not more, if they are enabled."""
        if not self.graphs and not self.ungraphed:
            return []
        plain = "; ".join(f"{count} plain: {reason}" for reason, count in self.ungraphed.items())
        return [f"CUDA graphs: {self.graphs}, {self.graph_bytes / 1e6:.1f} MB" + (f"; {plain}" if plain else "")]

    def to_json(self) -> str:
        """The report with all breaks, under `schema` number 1."""
        reasons = [str(refusal) for program in self.not_fused for refusal in program]
        return json.dumps({"schema": SCHEMA, **asdict(replace(self, not_fused=[])), "not_fused": reasons})

    def __str__(self) -> str:
        return self.text()


def _stage(report: Report, event: Event) -> None:
    report.seconds[event.stage] = report.seconds.get(event.stage, 0.0) + event.own_seconds
    if event.stage == "compile":
        report.total_seconds += event.seconds


def _break(report: Report, event: Event) -> None:
    data = event.data
    report.breaks.append(Break(str(data["code"]), str(data.get("at", "")), str(data["reason"])))


def _add(**counters: str) -> Callable[[Report, Event], None]:
    """Adds an entry of the event to each counter: an absent count is 1, a symbolic size is unknown and not counted."""

    def add(report: Report, event: Event) -> None:
        for name, key in counters.items():
            number = event.data.get(key, 1)
            setattr(report, name, getattr(report, name) + (number if isinstance(number, int) else 0))

    return add


def _unsaved(report: Report, event: Event) -> None:
    report.unsaved.append(f"{event.data['code']} {event.data['reason']}")


def _ungraphed(report: Report, event: Event) -> None:
    reason = str(event.data["reason"])
    report.ungraphed[reason] = report.ungraphed.get(reason, 0) + 1


def _note(report: Report, event: Event) -> None:
    report.notes.append(str(event.data["text"]))


def _not_fused(report: Report, event: Event) -> None:
    refusals = event.data["refusals"]
    if isinstance(refusals, Iterable):
        report.not_fused.append(refusals)


HANDLERS = {
    "stage": _stage,
    "graph_break": _break,
    "skipped_frame": _break,
    "region": _add(regions="count"),
    "compile": _add(compiles="count"),
    "loaded": _add(loaded="count"),
    "not_saved": _unsaved,
    "eager": _add(eager="count"),
    "kernels": _add(kernels="count"),
    "launches": _add(launches="count"),
    "library_calls": _add(library_calls="count"),
    "guards": _add(guards="count"),
    "traffic": _add(bytes_read="read", bytes_written="written"),
    "graph_recorded": _add(graphs="count", graph_bytes="bytes"),
    "graph_dropped": _add(graphs="count", graph_bytes="bytes"),
    "graph_refused": _ungraphed,
    "not_fused": _not_fused,
    "note": _note,
}
"""Event kind -> what it adds to the report."""
