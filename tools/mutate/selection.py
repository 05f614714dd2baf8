"""Which tests are related to a mutant: those that called its function, the cheapest of each file first.

    tests = Calls.read(Path("build/mutate/calls.jsonl"))
    tests.of(mutant, seconds=8.0)      ["tests/fusion/test_memory.py::test_reuse", ...]

A mutant outside of functions (a table, a default) takes the tests that call most functions of its file. Files that no
test calls into (C++ sources) take a folder of tests by `FOLDERS`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tools.mutate.mutants import Mutant

FOLDERS = {
    "csrc/executor": ("tests/runtime",),
    "csrc/frames": ("tests/native", "tests/guards"),
    "csrc": ("tests/guards", "tests/native", "tests/runtime"),
    "kiln/loops/codegen/cpp": ("tests/codegen",),
    "kiln/loops/codegen/triton": ("tests/codegen_triton",),
}
"""The longest prefix counts."""
MOST_TESTS = 80


@final
@dataclass(frozen=True, slots=True)
class RecordedTest:
    name: str
    seconds: float

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


@final
class Calls:
    """Function, and file -> the tests that call it."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._by_function: dict[str, list[RecordedTest]] = defaultdict(list)
        self._by_file: dict[str, dict[RecordedTest, int]] = defaultdict(dict)
        last = {found["test"]: found for found in map(json.loads, lines)}
        for found in last.values():
            if found.get("passed", True):
                test = RecordedTest(found["test"], found["seconds"])
                for function in found["calls"]:
                    self._by_function[function].append(test)
                    file = function.rpartition(":")[0]
                    self._by_file[file][test] = self._by_file[file].get(test, 0) + 1

    @classmethod
    def read(cls, path: Path) -> Calls:
        with path.open() as lines:
            return cls(lines)

    def of(self, mutant: Mutant, seconds: float) -> list[str]:
        """Test ids, or folders."""
        file = mutant.path.removeprefix("kiln/")
        related = self._by_function.get(f"{file}:{mutant.function}", [])
        if not related and mutant.path.endswith(".py"):
            counts = self._by_file.get(file, {})
            related = sorted(counts, key=lambda test: (-counts[test], test.seconds))[:MOST_TESTS]
        if related:
            return [test.name for test in spread(related, seconds)]
        prefixes = [folder for folder in FOLDERS if mutant.path.startswith(folder)]
        return list(FOLDERS[max(prefixes, key=len)]) if prefixes else []


def spread(tests: Sequence[RecordedTest], seconds: float) -> list[RecordedTest]:
    """The cheapest of each file, then the next of each, while they take less than `seconds`; grouped by file."""
    by_file: dict[str, list[RecordedTest]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: test.seconds):
        by_file[test.file].append(test)
    chosen: list[RecordedTest] = []
    spent = 0.0
    for turn in range(max(map(len, by_file.values()))):
        for file in sorted(by_file, key=lambda name: by_file[name][0].seconds):
            if turn < len(by_file[file]) and len(chosen) < MOST_TESTS:
                test = by_file[file][turn]
                if not chosen or spent + test.seconds <= seconds:
                    chosen.append(test)
                    spent += test.seconds
    return sorted(chosen, key=lambda test: (by_file[test.file][0].seconds, test.file))
