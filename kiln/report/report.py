"""What the compiler did for one compiled function, in some lines or as JSON.

    kiln: Net.forward  2 regions, 3 compiles (1 recompile), 1 eager
    seconds: capture 0.10, graph 0.03, loops 0.12, g++ 1.10, other 0.02; total 1.37
    kernels: 6 (72 launches, 96 library calls), 12.4 MB read, 6.1 MB written
    eager KILN1090 `Net.forward` was compiled 8 times for different arguments: self.step is 9, and was 8
        try: nothing: a number that has changed is an input from then on. If it comes again, pass it as a tensor
    recompiled Net.forward: shape of x is [7, 4], and was [4, 4] (read at model.py:40, in Net.forward)
    break KILN1007 model.py:41, in Net.forward: `if` asks for the value of a tensor
        try: keep both sides in the graph with `torch.where`

It is made from events alone; no stage depends on it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, field, fields, replace
from typing import final

from kiln.support.events import Event
from kiln.support.records import dataclass

SCHEMA = 1  # the form of the JSON
SHOWN = 8
"""Distinct entries of each section: what ran eager, recompiles, breaks, notes. None crowds out another."""
SHOWN_STAGES = 6  # those that took longest; the others are one sum


@final
@dataclass(frozen=True, slots=True)
class Break:
    """A graph break, a skipped frame, or a function that runs eager: code, user's line, reason, advice."""

    code: str
    where: str
    reason: str
    hint: str = ""

    def text(self) -> str:
        return f"{self.code} {self.where}: {self.reason}" if self.where else f"{self.code} {self.reason}"


@final
@dataclass(frozen=True, slots=True)
class Recompile:
    """Why no variant of `function` fitted a call: the guard of the last one that failed, in words."""

    function: str
    reason: str
    hint: str = ""

    def text(self) -> str:
        return f"{self.function}: {self.reason}"


def section(title: str, counted: Counter[Break] | Counter[Recompile]) -> list[str]:
    """Distinct entries, the most frequent ones if there are many, each with its advice."""
    lines = []
    for entry, times in counted.most_common(SHOWN) if len(counted) > SHOWN else counted.items():
        lines.append(f"{title} {entry.text()}" + (f" (x{times})" if times > 1 else ""))
        if entry.hint:
            lines.append(f"    try: {entry.hint}")
    if len(counted) > SHOWN:
        lines.append(f"... and {len(counted) - SHOWN} more of the kind `{title}` (see the JSON form)")
    return lines


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
    kernel_names: list[str] = field(default_factory=list)
    """The distinct kernels, each with the torch calls that it computes."""
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
    break_seconds: float | None = None
    """What a break costs whenever it is reached; None where that was not measured."""
    eager_reasons: Counter[Break] = field(default_factory=Counter)
    """Why calls ran eager -> how often that was said: one reason may hold for every call."""
    recompiles: list[Recompile] = field(default_factory=list)
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
        """A summary, then what ran eager, what was compiled again, and where the graph breaks, with advice."""
        count = len(self.recompiles)
        loaded = f", {self.loaded} loaded" if self.loaded else ""
        recompiles = f" ({count} recompile{'s' if count > 1 else ''})" if count > 0 else ""
        lines = [
            f"kiln: {self.name}  {self.regions} regions, {self.compiles} compiles{recompiles}{loaded}, "
            f"{self.eager} eager",
            self._seconds_line(),
            f"kernels: {self.kernels} ({self.launches} launches, {self.library_calls} library calls), "
            f"{self.bytes_read / 1e6:.1f} MB read, {self.bytes_written / 1e6:.1f} MB written; {self.guards} guards",
        ]
        lines += [f"    {name}" for name in self.kernel_names[:SHOWN]]
        if len(self.kernel_names) > SHOWN:
            lines.append(f"    ... and {len(self.kernel_names) - SHOWN} more kernels (see the JSON form)")
        lines += self._graph_lines()
        eager = {(reason.code, reason.reason) for reason in self.eager_reasons}
        breaks = [found for found in self.breaks if (found.code, found.reason) not in eager]
        lines += section("eager", self.eager_reasons) + section("recompiled", Counter(self.recompiles))
        lines += section("break", Counter(breaks))
        if breaks and self.break_seconds is not None:
            lines.append(f"a break costs about {self.break_seconds * 1e6:.1f} us whenever it is reached")
        notes = Counter(self.notes)
        lines += [f"{note} (x{times})" if times > 1 else note for note, times in notes.most_common(SHOWN)]
        if len(notes) > SHOWN:
            lines.append(f"... and {len(notes) - SHOWN} more notes (see the JSON form)")
        return "\n".join(lines)

    def _seconds_line(self) -> str:
        """The longest stages, and the others together."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        parts = [f"{name} {value:.3f}" for name, value in ordered[:SHOWN_STAGES]]
        parts.append(f"other {sum(value for _, value in ordered[SHOWN_STAGES:]):.3f}")
        return f"seconds: {', '.join(parts)}; total {self.total_seconds:.3f}"

    def _graph_lines(self) -> list[str]:
        """How many CUDA graphs there are and why not more, if they are enabled."""
        if not self.graphs and not self.ungraphed:
            return []
        plain = "; ".join(f"{count} plain: {reason}" for reason, count in self.ungraphed.items())
        return [f"CUDA graphs: {self.graphs}, {self.graph_bytes / 1e6:.1f} MB" + (f"; {plain}" if plain else "")]

    def to_json(self) -> str:
        """The report with all breaks, under `schema` number 1."""
        reasons = [str(refusal) for program in self.not_fused for refusal in program]
        eager = [{**asdict(reason), "times": times} for reason, times in self.eager_reasons.items()]
        plain = asdict(replace(self, not_fused=[], eager_reasons=Counter()))
        return json.dumps({"schema": SCHEMA, **plain, "not_fused": reasons, "eager_reasons": eager})

    def __str__(self) -> str:
        return self.text()


def _stage(report: Report, event: Event) -> None:
    report.seconds[event.stage] = report.seconds.get(event.stage, 0.0) + event.own_seconds
    if event.stage == "compile":
        report.total_seconds += event.seconds


def _reason(event: Event) -> Break:
    data = event.data
    return Break(str(data["code"]), str(data.get("at", "")), one_line(data["reason"]), str(data.get("hint", "")))


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def _break(report: Report, event: Event) -> None:
    report.breaks.append(_reason(event))


def _forget_breaks(report: Report, event: Event) -> None:
    """Drop the `count` breaks of an attempt that was given up; `behind` others were recorded after them."""
    count, behind = event.data["count"], event.data["behind"]
    if isinstance(count, int) and isinstance(behind, int):
        end = len(report.breaks) - behind
        del report.breaks[max(end - count, 0) : end]


def _kernels(report: Report, event: Event) -> None:
    count, names = event.data.get("count", 1), str(event.data.get("names", ""))
    report.kernels += count if isinstance(count, int) else 0
    report.kernel_names += [name for name in names.split("; ") if name and name not in report.kernel_names]


def _eager(report: Report, event: Event) -> None:
    report.eager += 1
    report.eager_reasons[_reason(event)] += 1


def _recompile(report: Report, event: Event) -> None:
    data = event.data
    report.recompiles.append(Recompile(str(data["function"]), str(data["reason"]), str(data["hint"])))


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
    "forget_breaks": _forget_breaks,
    "skipped_frame": _break,
    "region": _add(regions="count"),
    "compile": _add(compiles="count"),
    "loaded": _add(loaded="count"),
    "not_saved": _unsaved,
    "eager": _eager,
    "recompile": _recompile,
    "kernels": _kernels,
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
