"""What became of each mutant: JSON lines, of one run or of several.

    {"mutant": "kiln/plan/arena.py bound ...", "status": "caught", "by": "tests/...", "seconds": 7.1, "line": 44}
    {"mutant": "nothing, after kiln/plan/arena.py bound ...", "status": "caught", ...}      a control: a wrong alarm

The last line of a mutant counts. A control runs a mutant's tests without the mutant: they must pass.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from tools.mutate.copy_of_tree import Verdict
from tools.mutate.mutants import Mutant

CONTROL = "nothing, after "
HEADS = ("caught", "timeout", "survived", "argued", "untested", "broken", "gone")


def add_line(path: Path, mutant: str, verdict: Verdict, seconds: float, line: int) -> None:
    """Processes may write to one file: a line is one write."""
    found = {
        "mutant": mutant, "status": verdict.status, "by": verdict.by[:300], "seconds": round(seconds, 1), "line": line,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (json.dumps(found) + "\n").encode())
    finally:
        os.close(handle)


def read_journals(paths: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Mutant -> its last line."""
    texts = [path.read_text() for path in paths if path.exists()]
    return {line["mutant"]: line for text in texts for line in map(json.loads, text.splitlines())}


def table(lines: Mapping[str, dict[str, str]], argued: Mapping[str, str], present: Container[str]) -> tuple[str, int]:
    """By folder, and the survivors that are neither argued nor caught, with their number. Mutants that are not
    `present`, whose row was changed or deleted since, are gone: caught or not, they do not count.
    """
    by_folder: dict[str, Counter[str]] = defaultdict(Counter)
    survivors: list[str] = []
    mutants = {key: line for key, line in lines.items() if not key.startswith(CONTROL)}
    for key, line in sorted(mutants.items()):
        status = line["status"]
        if key not in present:
            status = "gone"
        elif status in ("survived", "untested") and key in argued:
            status = "argued"
        by_folder["/".join(key.split("/")[:2])][status] += 1
        if status in ("survived", "untested"):
            survivors.append(f"  {key} (line {line['line']}{', untested' if status == 'untested' else ''})")
    total: Counter[str] = sum(by_folder.values(), Counter())
    rows = [f"{'':20}" + "".join([f"{head:>10}" for head in HEADS])]
    for folder, counts in [*by_folder.items(), ("all", total)]:
        rows.append(f"{folder:20}" + "".join([f"{counts[head]:10}" for head in HEADS]))
    caught, judged = total["caught"] + total["timeout"], sum(total.values()) - total["broken"] - total["gone"]
    differ = judged - total["argued"]
    rows.append(
        f"caught: {caught / max(1, judged):.1%} of {judged}; {caught / max(1, differ):.1%} of the {differ} that differ"
    )
    controls = [line for key, line in lines.items() if key.startswith(CONTROL)]
    failed = [line for line in controls if line["status"] != "survived"]
    rows.append(f"controls: {len(controls)} runs without a change, {len(failed)} failed")
    rows += [f"  {line['by']}" for line in failed]
    return "\n".join([*rows, "survivors:", *survivors]), len(survivors)


def failed_unchanged(lines: Mapping[str, dict[str, str]]) -> set[str]:
    return {line["by"] for key, line in lines.items() if key.startswith(CONTROL) and line["status"] == "caught"}


def control_of(mutant: Mutant) -> str:
    return CONTROL + mutant.key
