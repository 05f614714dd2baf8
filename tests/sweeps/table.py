"""What sweeps found, counted: a table of shares by mode, then what is to be listed.

    python -m tests.sweeps table found.jsonl

A row has the columns of `COLUMNS`, as shares of the runs of a mode, and the number of runs. Below stand the findings by
kind, and the codes of fallbacks with their ops.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

RIGHT = frozenset(("native", "resumed", "fallback", "metadata", "skipped"))
"""Kinds of findings that are no faults: they are counted for the shares."""
# fmt: off
COLUMNS = (
    ("right",    ("native", "resumed", "fallback", "metadata")),
    ("native",   ("native",)),
    ("resumed",  ("resumed",)),
    ("fallback", ("fallback",)),
    ("metadata", ("metadata",)),
    ("wrong",    ("values", "nonfinite", "shape", "dtype", "strides", "requires_grad", "structure", "outcome")),
    ("error",    ("error", "refused")),
    ("lost",     ("lost error", "other error", "unnamed error")),
    ("internal", ("internal",)),
    ("crash",    ("crash", "timeout")),
)
# fmt: on
REASONS, REASON = 60, 160
"""How many reasons are listed, and how much of each."""
OWN_NAMES = re.compile(r"`[^`]*<locals>[^`]*`|`\w+Tests?\.\w+[^`]*`")
NAMED = 6
"""Subjects that are named for each line of a list."""


def table(lines: Iterable[dict[str, Any]]) -> list[str]:
    """The shares of outcomes by mode, what is skipped left out; then the reasons of fallbacks, and every fault."""
    findings = [line for line in lines if "kind" in line]
    shares = shares_of(findings)
    return [*shares, *reasons_of(findings), *faults_of(findings)]


def shares_of(findings: list[dict[str, Any]]) -> list[str]:
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for finding in findings:
        if finding["kind"] != "skipped":
            worst = counted[finding.get("mode", "").partition(" ")[0] or "(no mode)"]
            worst[finding["kind"]] += 1
    total: Counter[str] = sum(counted.values(), Counter())
    rows = [*sorted(counted.items()), ("all", total)]
    header = f"{'':12}" + "".join(f"{name:>10}" for name, _ in COLUMNS) + f"{'of':>8}"
    return [header, *(row(name, kinds) for name, kinds in rows)]


def row(name: str, kinds: Counter[str]) -> str:
    count = sum(kinds.values())
    cells = [sum(kinds[kind] for kind in column) / max(count, 1) for _, column in COLUMNS]
    return f"{name:12}" + "".join(f"{cell:10.2%}" for cell in cells) + f"{count:8}"


def reasons_of(findings: list[dict[str, Any]]) -> list[str]:
    """Why what is right ran in eager, the most frequent reasons first; names of the program's own are left out."""
    subjects: dict[str, dict[str, None]] = defaultdict(dict)
    times: Counter[str] = Counter()
    for finding in findings:
        if finding["kind"] in ("resumed", "fallback", "metadata"):
            for reason in filter(None, finding.get("detail", "").split("; ")):
                kind = OWN_NAMES.sub("`...`", reason)[:REASON]
                times[kind] += 1
                subjects[kind][finding["subject"]] = None
    return [f"fallback {reason}: {count} ({some(subjects[reason])})" for reason, count in times.most_common(REASONS)]


def faults_of(findings: list[dict[str, Any]]) -> list[str]:
    """Each subject and kind of fault, with one of its details."""
    first: dict[tuple[str, str], dict[str, Any]] = {}
    modes: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for finding in findings:
        if finding["kind"] not in RIGHT:
            key = finding["kind"], finding["subject"]
            first.setdefault(key, finding)
            modes[key][finding.get("mode", "")] = None
    return [
        f"{kind} {subject} [{some(modes[kind, subject])}]: {finding.get('detail', '')[:240]}"
        for (kind, subject), finding in sorted(first.items())
    ]


def some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
