"""`python -m kiln bench --suite export`: programs and packages of suite `cpu`, beside torch.export and AOTInductor.

    bert-base/padded small     export     0.31 s, torch.export     2.10 s: 0.15 of it
                               package    2.90 s, AOTInductor     31.0 s: 0.09 of it
                               call       0.41 ms, AOTInductor   0.52 ms: 0.79 of it; error 2e-07 and 3e-07

Exports are made in turn, in random order; their medians are compared. Packages are made once, with empty caches, after
that of a tiny program. Both are CPU seconds, compilers in other processes included. Calls are in turn, in wall time.
Errors are the largest difference from eager, as a share of its largest value. `small`: the same programs with fewer
layers and smaller widths (`tiny.py`).
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import cast, final

import torch
from torch import nn

from kiln.support.records import dataclass
from kiln_bench.candidates import EXPORTERS
from kiln_bench.models import Case
from kiln_bench.results import geomean, write_data
from kiln_bench.suite import SuiteRow, load_suite
from kiln_bench.task import ExportFinding, Task
from kiln_bench.turns import BenchWorker

PEERS = {"export": "torch.export", "package": "AOTInductor", "call": "AOTInductor"}
"""What was measured -> what it is compared with."""
ASKED = {"export": 0.2, "package": 0.2, "call": 1.0}
"""The share of the peer's time that is asked for."""
VARIANTS = ("", "padded")
"""Rows of text models are measured with this mask only."""


def cpu_seconds(run: Callable[[], object]) -> float:
    """Of this process and those that it waits for."""
    before = _used()
    run()
    return _used() - before


def _used() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum([each.ru_utime + each.ru_stime for each in used])


@final
class Rivals:
    """A case, and what each exporter makes of it. `failures`: the error of one that cannot."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder
        self.programs: dict[str, object] = {}
        self.packages: dict[str, Callable[..., object]] = {}
        self.failures: dict[str, str] = {}

    def timed(self, name: str, work: Callable[[], object]) -> float | None:
        if name in self.failures:
            return None
        try:
            with torch.no_grad():
                return cpu_seconds(work)
        except Exception as problem:
            self.failures[name] = f"{type(problem).__name__}: {problem}"[:300]
            return None

    def export(self, name: str) -> float | None:
        def work() -> None:
            case = self.case
            self.programs[name] = EXPORTERS[name].export(cast(nn.Module, case.model), case.args, case.kwargs)

        return self.timed(name, work)

    def package(self, name: str) -> float | None:
        path = self.folder / f"{name}.{EXPORTERS[name].suffix}"
        found = self.timed(name, lambda: EXPORTERS[name].package(self.programs[name], path))
        if found is not None:
            self.packages[name] = EXPORTERS[name].load(path)
        return found

    def call(self, name: str) -> float:
        start = time.perf_counter()
        self.case.run(self.packages[name])
        return time.perf_counter() - start

    def error(self, name: str) -> float:
        expected, found = self.case.run(self.case.model), self.case.run(self.packages[name])
        pairs = zip(found, expected, strict=True)
        return max([float((left - right).abs().max() / right.abs().max().clamp_min(1e-30)) for left, right in pairs])


def measure_exports(case: Case, rounds: int, calls: int) -> Iterator[ExportFinding]:
    """What a worker does for a row; it waits for its turn before each step but the first."""
    names = list(EXPORTERS)
    with tempfile.TemporaryDirectory() as folder:
        first = Rivals(Case(nn.Linear(4, 4).eval(), (torch.ones(2, 4),), {}, train=False), Path(folder))
        for name in names:  # imports, and what is set up once per machine
            first.export(name)
            first.package(name)
        rivals = Rivals(case, Path(folder))
        found: ExportFinding = {"times": {kind: {name: [] for name in names} for kind in PEERS}, "errors": {}}

        def note(kind: str, name: str, seconds: float | None) -> None:
            if seconds is not None:
                found["times"][kind][name].append(seconds)

        for _ in range(rounds):
            for name in random.sample(names, len(names)):
                note("export", name, rivals.export(name))
        for name in random.sample(names, len(names)):
            note("package", name, rivals.package(name))
        for turn in range(calls + 3):
            for name in random.sample(list(rivals.packages), len(rivals.packages)):
                seconds = rivals.call(name)
                note("call", name, seconds if turn >= 3 else None)
        found["errors"] = {name: rivals.error(name) for name in rivals.packages}
        found["failures"] = rivals.failures
        yield found


# ------------------------------------------------------------------------------------------------ results


@final
@dataclass(frozen=True, slots=True)
class ExportRow:
    title: str
    found: ExportFinding

    def medians(self, kind: str) -> tuple[float, float] | None:
        """Kiln's and the peer's seconds; None where one of them failed."""
        times = [self.found.get("times", {}).get(kind, {}).get(name, []) for name in ("kiln", "torch")]
        return (median(times[0]), median(times[1])) if all(times) else None

    def lines(self) -> Iterator[str]:
        for kind, peer in PEERS.items():
            pair = self.medians(kind)
            title = self.title if kind == "export" else ""
            if pair is not None:
                ours, theirs = pair
                yield f"{title:28}{kind:8} {ours:9.4f} s, {peer:12} {theirs:9.4f} s: {ours / theirs:.3f} of it"
        errors = ", ".join([f"{name} {value:.1e}" for name, value in self.found.get("errors", {}).items()])
        yield f"{'':28}errors   {errors}"
        for name, problem in self.found.get("failures", {}).items():
            yield f"{'':28}{name} failed: {problem}"
        if "failure" in self.found:
            yield f"{self.title:28}{self.found['failure']}"


def summary(rows: Sequence[ExportRow]) -> Iterator[str]:
    for kind, peer in PEERS.items():
        shares = [pair[0] / pair[1] for row in rows if (pair := row.medians(kind)) is not None]
        if shares:
            worst = max(shares)
            yield (
                f"{kind:8} {geomean(shares):.3f} of {peer}'s time (geometric mean of {len(shares)}, worst {worst:.3f}; "
                f"asked for {ASKED[kind]})"
            )


def run(models: Sequence[str], threads: int, rounds: int, calls: int, json: Path | None) -> int:
    """Measure; the exit status is 1 if Kiln fails on a row."""
    torch.set_num_threads(threads)
    rows = [row for row in load_suite("cpu").rows if row.variant in VARIANTS and (not models or row.name in models)]
    found: list[ExportRow] = []
    for small in (True, False):
        for row in rows:
            found.append(measured(row, small, threads, rounds, calls))
            print("\n".join(found[-1].lines()), flush=True)
    print("\n".join(summary(found)))
    if json is not None:
        write_data(json, {"exports": [{"row": row.title, **row.found} for row in found]})
    failed = [row for row in found if "kiln" not in row.found.get("errors", {})]
    return int(bool(failed))


def measured(row: SuiteRow, small: bool, threads: int, rounds: int, calls: int) -> ExportRow:
    task: Task = {
        "task": "export", "suite": "cpu", "row": row.title, "train": False, "threads": threads, "cores": [],
        "small": small, "pairs": rounds, "calls": calls,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as caches:
        worker = BenchWorker(task, Path(caches))
        found = cast(ExportFinding, worker.next())
        worker.close()
    if "failure" in found:
        print(found.get("stderr", ""), file=sys.stderr)
    return ExportRow(f"{row.title} {'small' if small else 'full'}", found)
