"""The file that says which functions each test calls, recorded by several processes.

    record_calls(root, ["tests/fusion"], path, processes=14, deadline=Deadline(240))
    read_calls(path)      [RecordedTest("tests/fusion/test_fusion.py::test_all", 0.1, ("loops/fusion/fuse.py:fuse",))]

gzip; the first line lists the functions, each other line is a test, whose calls are numbers of functions. Tests that
failed or were skipped are not in it.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tools.mutate.copy_of_tree import TreeCopy
from tools.mutate.processes import Deadline, in_processes

PARTS_OF_A_PROCESS = 4
"""The files are divided into so many parts per process: their tests take unlike times."""


@final
@dataclass(frozen=True, slots=True)
class RecordedTest:
    name: str
    seconds: float
    calls: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


def record_calls(root: Path, tests: Sequence[str], path: Path, processes: int, deadline: Deadline) -> None:
    """Adds to `path`; tests that are in it already are replaced."""
    files = sorted(test_files(root, tests), key=lambda name: -(root / name.partition("::")[0]).stat().st_size)
    count = min(len(files), processes * PARTS_OF_A_PROCESS)
    parts = [files[place::count] for place in range(count)]
    with tempfile.TemporaryDirectory(prefix="kiln-calls-") as folder:

        def work(process: int) -> TreeCopy:
            return TreeCopy(root, Path(folder, str(process)))

        def record(copy: TreeCopy, place: int) -> None:
            copy.record(parts[place], Path(folder, f"{place}.jsonl"), deadline.left())

        in_processes(processes, count, work, record, deadline)
        lines = [line for part in sorted(Path(folder).glob("*.jsonl")) for line in part.read_text().splitlines()]
    if not lines:
        raise SystemExit("no test ran")
    recorded = [parsed for line in lines if (parsed := json.loads(line))["passed"]]
    tested = {parsed["test"] for parsed in map(json.loads, lines)}
    kept = [test for test in read_calls(path) if test.name not in tested] if path.exists() else []
    new = [RecordedTest(found["test"], found["seconds"], tuple(found["calls"])) for found in recorded]
    write_calls(path, [*kept, *new])
    print(f"{len(new)} of {len(tested)} tests passed and are noted; {len(kept)} of earlier runs are kept")


def test_files(root: Path, tests: Iterable[str]) -> list[str]:
    """Files of tests; folders are searched."""
    found: dict[str, None] = {}
    for name in tests:
        folder = (root / name).is_dir()
        paths = sorted((root / name).rglob("test_*.py")) if folder else [root / name]
        found.update(dict.fromkeys([str(path.relative_to(root)) for path in paths]))
    return list(found)


def write_calls(path: Path, tests: Sequence[RecordedTest]) -> None:
    numbers: dict[str, int] = {}
    for test in tests:
        for call in test.calls:
            numbers.setdefault(call, len(numbers))
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as out:
        out.write(json.dumps({"functions": list(numbers)}) + "\n")
        for test in tests:
            calls = sorted([numbers[call] for call in test.calls])
            out.write(json.dumps({"test": test.name, "seconds": test.seconds, "calls": calls}) + "\n")


def read_calls(path: Path) -> list[RecordedTest]:
    with gzip.open(path, "rt") as lines:
        functions = json.loads(next(lines))["functions"]
        parsed = map(json.loads, lines)
        return [
            RecordedTest(line["test"], line["seconds"], tuple([functions[number] for number in line["calls"]]))
            for line in parsed
        ]
