"""Which tests are related to a mutant: those that called its function, unit tests and the cheapest of each file first.

    tests = Calls(read_calls(Path("build/mutate/calls.jsonl.gz")), root)
    tests.of(mutant, seconds=8.0)      ["tests/fusion/test_memory.py::test_reuse", ...]

Tests come first whose name has a word of the mutant's function, or of a text in its row: `test_values[rad2deg]` for
`DECOMPOSITIONS["rad2deg.default"] = ...`.
A mutant outside of functions (a table, a default) takes the tests of the files that import its module, and those that
call most of its functions. Files that no test calls into (C++ sources, code that tests call in another process) take
tests of some folders, by `FOLDERS`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import final

from tools.mutate.call_map import RecordedTest
from tools.mutate.mutants import Mutant

GRAPHS = ("tests/cuda_graphs", "tests/gpu_graphs", "tests/runtime")
FOLDERS = {
    "csrc/executor": ("tests/runtime", "tests/threads"),
    "csrc/executor/graph_replay": GRAPHS,
    "csrc/executor/memory_pool": GRAPHS,
    "csrc/executor/memory_heap": GRAPHS,
    "csrc/executor/null_runtime": GRAPHS,
    "csrc/executor/region": ("tests/runtime", "tests/trace", "tests/api"),
    "csrc/frames": ("tests/guards", "tests/native", "tests/stale"),
    "csrc/frames/dispatcher": ("tests/native", "tests/api", "tests/capture"),
    "csrc/frames/entry": ("tests/native", "tests/api", "tests/capture"),
    "csrc/frames/hook": ("tests/native", "tests/api", "tests/capture"),
    "kiln/capture/interpreter/polyfills.py": ("tests/capture/test_python.py", "tests/capture/test_semantics.py"),
    "kiln/capture/interpreter/control_flow.py": ("tests/capture", "tests/api"),
    "kiln/debug": ("tests/debug",),
    "kiln/graph/trace/data_dependent.py": ("tests/trace", "tests/api"),
    "kiln/loops/codegen/cpp/prelude": ("tests/codegen/test_cpp_math.py", "tests/codegen/test_cpp_kernels.py"),
    "kiln/loops/codegen/cpp": ("tests/codegen",),
    "kiln/loops/codegen/triton": ("tests/codegen_triton",),
}
"""The longest prefix counts."""
MOST_TESTS_A_SECOND = 10
MOST_SPECIFIC = 30
"""Of the tests, so many that call the fewest functions at all."""
TEXT, WORD = re.compile(r'"([\w.]+)"'), re.compile(r"[a-z][a-z0-9]{3,}")


@final
class Calls:
    """Function, and file -> the tests that call it."""

    def __init__(self, tests: Iterable[RecordedTest], root: Path = Path()) -> None:
        self._root = root
        self._tests: dict[str, list[RecordedTest]] = defaultdict(list)
        self._by_function: dict[str, list[RecordedTest]] = defaultdict(list)
        self._by_file: dict[str, dict[str, int]] = defaultdict(dict)
        self._by_name: dict[str, RecordedTest] = {}
        for test in tests:
            if not root.parts or (root / test.file).exists():
                self._tests[test.file].append(test)
                self._by_name[test.name] = test
                for function in test.calls:
                    self._by_function[function].append(test)
                    file = function.rpartition(":")[0]
                    self._by_file[file][test.name] = self._by_file[file].get(test.name, 0) + 1

    def __contains__(self, test: str) -> bool:
        return test in self._by_name

    def _importing(self, module: str) -> Iterator[RecordedTest]:
        """The tests of the files that name `module`."""
        for file, tests in self._tests.items():
            path = self._root / file
            if path.exists() and f"{module} import" in path.read_text():
                yield from tests

    def of(self, mutant: Mutant, seconds: float) -> list[str]:
        """Test ids, of at most so many seconds, but one at least if any is related."""
        return [test.name for test in spread(self._related(mutant), seconds, words_of(mutant))]

    def _related(self, mutant: Mutant) -> list[RecordedTest]:
        file = mutant.path.removeprefix("kiln/")
        related = list(self._by_function.get(f"{file}:{mutant.function}", []))
        if not related and mutant.path.endswith(".py") and mutant.path not in FOLDERS and file in self._by_file:
            counts = self._by_file.get(file, {})
            most = sorted(counts, key=lambda name: (-counts[name], self._by_name[name].seconds))
            module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            names = dict.fromkeys([*most, *(test.name for test in self._importing(module))])
            related = [self._by_name[name] for name in names]
        prefixes = [folder for folder in FOLDERS if mutant.path.startswith(folder)]
        if not related and prefixes:
            wanted = FOLDERS[max(prefixes, key=len)]
            related = [test for test in self._by_name.values() if test.name.startswith(wanted)]
        return related


def words_of(mutant: Mutant) -> frozenset[str]:
    """Of its function's name and of the texts in its row, of four letters or more."""
    text = " ".join([mutant.function or "", *TEXT.findall(mutant.context)])
    return frozenset(WORD.findall(text.lower().replace("default", "")))


def spread(tests: Sequence[RecordedTest], seconds: float, words: frozenset[str] = frozenset()) -> list[RecordedTest]:
    """In at most `seconds`: those with the most of `words` in their names, those that call least, then the cheapest of
    each file, the next of each; by file."""
    by_file: dict[str, list[RecordedTest]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: test.seconds):
        by_file[test.file].append(test)
    counts = {test.name: sum(word in test.name.partition("::")[2].lower() for word in words) for test in tests}
    named = sorted([test for test in tests if counts[test.name]], key=lambda test: (-counts[test.name], test.seconds))
    specific = sorted(tests, key=lambda test: (len(test.calls), test.seconds))[:MOST_SPECIFIC]
    turns = zip_longest(*sorted(by_file.values(), key=lambda found: found[0].seconds))
    others = [test for turn in turns for test in turn if test is not None]
    chosen: dict[str, RecordedTest] = {}
    spent = 0.0
    most = int(MOST_TESTS_A_SECOND * max(seconds, 1.0))
    for part, limit in ((named[:MOST_SPECIFIC], seconds / 3), (specific, seconds * 2 / 3), (others, seconds)):
        for test in part:
            if test.name not in chosen and len(chosen) < most and (not chosen or spent + test.seconds <= limit):
                chosen[test.name] = test
                spent += test.seconds
    return sorted(chosen.values(), key=lambda test: (by_file[test.file][0].seconds, test.file))
