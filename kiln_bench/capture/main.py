"""`python -m kiln bench --suite capture`: is every model of some libraries one graph, and equal to eager?

    python -m kiln bench --suite capture --models bert,qwen2_vl --json found.jsonl
    python -m kiln bench --suite capture --libraries timm,torch --json found.jsonl
    python -m kiln bench --suite capture --libraries research --models attention     small modules, by field
    python -m kiln bench --suite capture --shard 0/8 --json found.jsonl            goes on where the file ends
    python -m kiln bench --suite capture --against torch.compile --models llava
    python -m kiln bench --suite capture --modes export --against ""               programs in processes of their own
    python -m kiln bench --suite capture --modes free --against torch.export       the same with free sizes, and times

Models are small and random (`model_sources.py`), with a process and a time limit each; those of `research` are called
with three sizes. The table has shares by mode; below it stand the reasons of breaks and the differences, most frequent
first.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import cast

import torch

from kiln_bench.capture.model_sources import entries
from kiln_bench.capture.subject import CaptureEntry
from kiln_bench.capture.trial import FREE, CaptureFinding, Mode, trials
from kiln_bench.children import Tell, Work, in_children

SHOWN = 40


def run(
    libraries: Sequence[str],
    wanted: Collection[str],
    candidates: Sequence[str],
    modes: Sequence[Mode],
    shard: str,
    jobs: int,
    seconds: float,
    out: Path | None,
) -> int:
    """Measure; the exit status is 1 if Kiln gives a wrong result or an error."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a forked process has none of OpenMP's threads
    part, parts = map(int, shard.split("/"))
    known = [found for found in entries(libraries) if not wanted or found.family in wanted or found.title in wanted]
    chosen = sorted(known, key=place_of)[part::parts]
    before = read(out) if out is not None and out.exists() else []
    done = {(found["name"], found["candidate"]) for found in before}
    tasks = [task for task in tasks_of(chosen, candidates, modes) if task[0] not in done]
    found = [*before, *measured(tasks, jobs, seconds, out)]
    print("\n".join(table(found)))
    return int(any([row["candidate"] == "kiln" and row["outcome"] in ("wrong", "error") for row in found]))


def place_of(entry: CaptureEntry) -> bytes:
    """Classes are measured in a random order that never changes, so that the first ones are a fair sample."""
    return hashlib.blake2b(entry.title.encode()).digest()


WAITING = 10
"""A process is killed that is silent for so many times its processor time."""
Task = tuple[tuple[str, str], Work]


def tasks_of(chosen: list[CaptureEntry], candidates: Sequence[str], modes: Sequence[Mode]) -> Iterator[Task]:
    for entry in chosen:
        for candidate in candidates:
            yield (entry.title, candidate), functools.partial(tell_trials, entry, candidate, modes)


def tell_trials(entry: CaptureEntry, candidate: str, modes: Sequence[Mode], tell: Tell) -> None:
    for found in trials(entry, candidate, modes):
        tell(found)


def measured(tasks: list[Task], jobs: int, seconds: float, out: Path | None) -> Iterator[CaptureFinding]:
    """The findings, also written to the file; a process that ends badly is one."""
    named = [(" ".join(key), task) for key, task in tasks]
    unwritten: dict[str, list[str]] = {}  # a class is written whole, so that a resumed run measures all of its modes
    for told in in_children(named, jobs, WAITING * seconds, int(seconds)):
        name, _, candidate = told.name.partition(" ")
        if told.ended == "":
            keep(unwritten.pop(told.name, []), out)
            continue
        if told.ended is None:
            found = cast(CaptureFinding, json.loads(told.line))
        else:
            found = {
                "name": name,
                "candidate": candidate,
                "outcome": told.ended.partition(",")[0],
                "detail": told.ended,
            }
        unwritten.setdefault(told.name, []).append(json.dumps(found) + "\n")
        if told.ended is not None:
            keep(unwritten.pop(told.name), out)
        print(line_of(found), file=sys.stderr, flush=True)
        yield found


def keep(lines: list[str], out: Path | None) -> None:
    if out is not None and lines:
        with out.open("a") as file:
            file.write("".join(lines))


def read(path: Path) -> list[CaptureFinding]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("}\n")]


def line_of(found: CaptureFinding) -> str:
    codes = " ".join(dict.fromkeys([code for code, _, _ in found.get("breaks", [])]))
    return f"{found['name']} {found['candidate']} {found.get('mode', '')} {found['outcome']} {codes}"


# ------------------------------------------------------------------------------------------------ table


def table(found: list[CaptureFinding]) -> list[str]:
    """Shares by candidate and mode, then reasons and differences of Kiln."""
    lines = [f"{'':22}{'models':>8}{'equal':>9}{'one graph':>11}{'wrong':>7}{'error':>7}{'first s':>9}{'eager s':>9}"]
    for candidate, mode in sorted({(row["candidate"], row["mode"]) for row in found if "mode" in row}):
        rows = [row for row in found if (row["candidate"], row.get("mode")) == (candidate, mode)]
        rows = [row for row in rows if row["outcome"] != "skipped"]
        counts = Counter([row["outcome"] for row in rows])
        graphs = sum([row["outcome"] == "equal" and not row.get("breaks") for row in rows])
        lines.append(
            f"{candidate:14} {mode:7}{len(rows):8}{share(counts['equal'], rows):>9}{share(graphs, rows):>11}"
            f"{counts['wrong']:7}{counts['error']:7}{sum([row.get('first_seconds', 0.0) for row in rows]):9.1f}"
            f"{sum([row.get('eager_seconds', 0.0) for row in rows]):9.1f}"
        )
    for outcome in ("not built", "skipped", "timeout", "crash"):
        names = dict.fromkeys([row["name"] for row in found if row["outcome"] == outcome])
        if names:
            lines.append(f"{outcome}: {len(names)} classes")
    return lines + export_times(found) + changed_sizes(found) + reasons(found)


def export_times(found: list[CaptureFinding]) -> list[str]:
    """Processor time of Kiln's exports beside torch's, where both succeed, and the other sizes that are taken."""
    done = {(row["name"], row["mode"], row["candidate"]): row for row in found if row["outcome"] == "equal"}
    pairs = [(row, done.get((name, mode, "torch.export"))) for (name, mode, by), row in done.items() if by == "kiln"]
    both = [
        (row["export_seconds"], other["export_seconds"]) for row, other in pairs if other and "export_seconds" in row
    ]
    lines = []
    if both:
        ours, theirs = map(sum, zip(*both, strict=True))
        lines.append(
            f"exports of both: {len(both)}, {ours:.1f} s of {theirs:.1f} s, median ratio "
            f"{median([own / other for own, other in both]):.2f}"
        )
    sizes = [row["sizes"] for row, _ in pairs if row.get("mode") in FREE]
    if sizes:
        asked, refused = map(sum, zip(*sizes, strict=True))
        lines.append(f"calls with other sizes: {asked}, of which {refused} are refused")
    return lines


def changed_sizes(found: list[CaptureFinding]) -> list[str]:
    """Of the models that are called with several sizes, those compiled more than once for the first and once again."""
    rows = [row for row in found if row["candidate"] == "kiln" and row.get("calls", 1) > 1 and row.get("breaks") == []]
    often = [f"{row['name']} {row['mode']} {row['compiles']}" for row in rows if row["compiles"] > 2]
    if not rows:
        return []
    return [f"calls of several sizes: {len(rows)}, compiled more than twice: {len(often)} {', '.join(often)}".rstrip()]


def share(count: int, rows: Sequence[object]) -> str:
    return f"{100 * count / len(rows):.1f} %" if rows else "-"


def reasons(found: list[CaptureFinding]) -> list[str]:
    """Code and reason of breaks -> in how many rows, with one of the lines; then differences and errors."""
    rows = [row for row in found if row["candidate"] == "kiln"]
    places: dict[tuple[str, str], tuple[str, str]] = {}
    counted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        kinds = {(code, reason): where for code, reason, where in row.get("breaks", [])}
        counted.update(kinds.keys())
        for kind, where in kinds.items():
            places.setdefault(kind, (row["name"], where))
    lines = [""] if counted else []
    for (code, reason), count in counted.most_common(SHOWN):
        lines.append(f"{count:5} {code} {reason[:150]}   ({' '.join(places[code, reason])})")
    for row in rows:
        if row["outcome"] in ("wrong", "error"):
            lines.append(f"{row['outcome']} {row['name']} {row['mode']}: {row['detail'][:200]}")
    return lines
