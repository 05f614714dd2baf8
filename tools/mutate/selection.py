"""Which tests are related to a mutant: those that called its function, unit tests and the cheapest of each file first.

    tests = Calls.read(Path("build/mutate/calls.jsonl"), root)
    tests.of(mutant, seconds=8.0)      ["tests/fusion/test_memory.py::test_reuse", ...]

A mutant outside of functions (a table, a default) takes the tests of the files that import its module, and those that
call most of its functions. Files that no test calls into (C++ sources) take a folder of tests by `FOLDERS`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import final

from tools.mutate.mutants import Mutant

FOLDERS = {
    "csrc/executor": ("tests/runtime",),
    "csrc/frames": ("tests/native", "tests/guards"),
    "csrc": ("tests/guards", "tests/native", "tests/runtime"),
    "kiln/capture/interpreter/polyfills.py": ("tests/capture/test_python.py", "tests/capture/test_semantics.py"),
    "kiln/loops/codegen/cpp": ("tests/codegen",),
    "kiln/loops/codegen/triton": ("tests/codegen_triton",),
}
"""The longest prefix counts."""
MOST_TESTS = 80
MOST_SPECIFIC = 30
"""Of these, so many that call the fewest functions at all."""


@final
@dataclass(frozen=True, slots=True)
class RecordedTest:
    name: str
    seconds: float
    breadth: int = 0
    """How many functions it calls."""

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


@final
class Calls:
    """Function, and file -> the tests that call it."""

    def __init__(self, lines: Iterable[str], root: Path = Path()) -> None:
        self._root = root
        self._tests: dict[str, list[RecordedTest]] = defaultdict(list)
        self._by_function: dict[str, list[RecordedTest]] = defaultdict(list)
        self._by_file: dict[str, dict[RecordedTest, int]] = defaultdict(dict)
        last = {found["test"]: found for found in map(json.loads, lines)}
        for found in last.values():
            if found.get("passed", True):
                test = RecordedTest(found["test"], found["seconds"], len(found["calls"]))
                self._tests[test.file].append(test)
                for function in found["calls"]:
                    self._by_function[function].append(test)
                    file = function.rpartition(":")[0]
                    self._by_file[file][test] = self._by_file[file].get(test, 0) + 1

    @classmethod
    def read(cls, path: Path, root: Path) -> Calls:
        with path.open() as lines:
            return cls(lines, root)

    def _importing(self, module: str) -> Iterator[RecordedTest]:
        """The tests of the files that name `module`."""
        for file, tests in self._tests.items():
            path = self._root / file
            if path.exists() and f"{module} import" in path.read_text():
                yield from tests

    def of(self, mutant: Mutant, seconds: float) -> list[str]:
        """Test ids, files or folders."""
        if mutant.path in FOLDERS:
            return list(FOLDERS[mutant.path])
        file = mutant.path.removeprefix("kiln/")
        related = self._by_function.get(f"{file}:{mutant.function}", [])
        if not related and mutant.path.endswith(".py"):
            counts = self._by_file.get(file, {})
            related = sorted(counts, key=lambda test: (-counts[test], test.seconds))[:MOST_TESTS]
            module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            related += [test for test in self._importing(module) if test not in related]
        if related:
            return [test.name for test in spread(related, seconds)]
        prefixes = [folder for folder in FOLDERS if mutant.path.startswith(folder)]
        return list(FOLDERS[max(prefixes, key=len)]) if prefixes else []


def spread(tests: Sequence[RecordedTest], seconds: float) -> list[RecordedTest]:
    """In at most `seconds`: those that call least, then the cheapest of each file, the next of each; by file."""
    by_file: dict[str, list[RecordedTest]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: test.seconds):
        by_file[test.file].append(test)
    specific = sorted(tests, key=lambda test: (test.breadth, test.seconds))[:MOST_SPECIFIC]
    turns = zip_longest(*sorted(by_file.values(), key=lambda found: found[0].seconds))
    others = [test for turn in turns for test in turn if test is not None]
    chosen: dict[RecordedTest, None] = {}
    spent = 0.0
    for part, limit in ((specific, seconds / 2), (others, seconds)):
        for test in part:
            if test not in chosen and len(chosen) < MOST_TESTS and (not chosen or spent + test.seconds <= limit):
                chosen[test] = None
                spent += test.seconds
    return sorted(chosen, key=lambda test: (by_file[test.file][0].seconds, test.file))
