"""Changes one thing of the sources at a time and runs the related tests: which changes does no test notice?

    python -m tools.mutate calls tests                        note which functions each test calls (build/mutate/)
    python -m tools.mutate run --count 400 --seed 0           a sample; goes on where an earlier run stopped
    python -m tools.mutate run --known                        those of known.toml, which once survived
    python -m tools.mutate run --only kiln/loops --shard 1/4  a part of the sources, a quarter of the sample
    python -m tools.mutate run --again                        survivors of the journals, after tests were added
    python -m tools.mutate run --processes 14 --minutes 9     on a larger machine, with an end
    python -m tools.mutate table [JOURNAL ...]                what was caught, by folder, and each survivor

Needs the extension, built in place (`make build`). The journal (build/mutate/journal.jsonl) has a line per mutant;
journals of several machines are read together. A survivor is a missing test, or equivalent: then survivors.toml says
why. Tests count that passed when their calls were noted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import final

import torch

from tools.mutate.call_map import read_calls, record_calls
from tools.mutate.copy_of_tree import TreeCopy, Verdict
from tools.mutate.journal import add_line, control_of, failed_unchanged, read_journals, table
from tools.mutate.mutants import Mutant
from tools.mutate.processes import Deadline, in_processes
from tools.mutate.sample import all_mutants, argued_survivors, known_mutants, sampled
from tools.mutate.selection import Calls

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutate"
CALLS, JOURNAL = WORK / "calls.jsonl.gz", WORK / "journal.jsonl"
CONTROL_EVERY = 20
BUILD_SECONDS = 120.0
OPEN = ("survived", "untested")
WARM = ("tests/tools/test_mutate.py", "tests/boundary", "tests/api/test_compile.py")
"""Tests that import most of Kiln: a copy's bytecode files are made by them."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    calls, run, shown = [commands.add_parser(name) for name in ("calls", "run", "table")]
    calls.add_argument("tests", nargs="+")
    run.add_argument("--count", type=int, default=400)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--shard", default="0/1", help="part/parts of the sample")
    run.add_argument("--only", default="", help="files whose path begins so")
    run.add_argument("--known", action="store_true")
    run.add_argument("--again", action="store_true")
    run.add_argument("--quick", type=float, default=6.0, help="seconds of tests that a mutant is given first")
    run.add_argument("--thorough", type=float, default=20.0, help="and if it survived those")
    run.add_argument("--limit", type=float, default=40.0, help="seconds after which a mutant's tests are stopped")
    run.add_argument("--journals", type=Path, nargs="*", default=[], help="earlier journals: what is known already")
    for parallel in (calls, run):
        parallel.add_argument("--processes", type=int, default=1)
        parallel.add_argument("--minutes", type=float, default=24 * 60.0)
        parallel.add_argument("--calls", type=Path, default=CALLS)
    run.add_argument("--journal", type=Path, default=JOURNAL)
    shown.add_argument("journals", type=Path, nargs="*", default=[JOURNAL])
    arguments = parser.parse_args()
    if arguments.command == "table":
        present = {mutant.key for mutant in [*all_mutants(ROOT), *known_mutants(ROOT)]}
        text, survivors = table(read_journals(arguments.journals), argued_survivors(), present)
        print(text)
        return int(survivors > 0)
    torch.set_num_threads(1)
    deadline = Deadline(arguments.minutes)
    if arguments.command == "calls":
        record_calls(ROOT, arguments.tests, arguments.calls, arguments.processes, deadline)
        return 0
    return run_mutants(arguments, deadline)


def run_mutants(arguments: argparse.Namespace, deadline: Deadline) -> int:
    done = read_journals([*arguments.journals, arguments.journal])
    unreliable = failed_unchanged(done)
    status = {key: OPEN[0] if line["by"] in unreliable else line["status"] for key, line in done.items()}
    mutants = chosen(arguments, status)
    calls = Calls([test for test in read_calls(arguments.calls) if test.name not in unreliable], ROOT)
    if any(mutant.path.startswith("csrc/") for mutant in mutants):
        build_objects(arguments.processes)
    with tempfile.TemporaryDirectory(prefix="kiln-mutate-") as folder:

        def start(process: int) -> Judge:
            copy = TreeCopy(ROOT, Path(folder, str(process)))
            copy.run(WARM, 300.0, write_bytecode=True)
            return Judge(copy, calls, arguments, deadline)

        def do(judge: Judge, number: int) -> None:
            mutant, before = mutants[number], time.monotonic()
            verdict = judge.verdict(mutant)
            if deadline.is_over():
                return
            add_line(arguments.journal, mutant.key, verdict, time.monotonic() - before, mutant.line)
            print(f"{verdict.status:9} {mutant.key} {verdict.by[:150]}", flush=True)
            tests = judge.tests(mutant, arguments.quick)
            if number % CONTROL_EVERY == 0 and tests:
                verdict = judge.run(tests)
                if not deadline.is_over():
                    add_line(arguments.journal, control_of(mutant), verdict, time.monotonic() - before, mutant.line)

        in_processes(arguments.processes, len(mutants), start, do, deadline)
    return 0


def chosen(arguments: argparse.Namespace, done: dict[str, str]) -> list[Mutant]:
    if arguments.known:
        return known_mutants(ROOT)
    found = list(all_mutants(ROOT, arguments.only))
    if arguments.again:
        argued = argued_survivors()
        return [mutant for mutant in found if done.get(mutant.key) in OPEN and mutant.key not in argued]
    part, parts = map(int, arguments.shard.split("/"))
    sample = sampled(ROOT, found, arguments.count, arguments.seed)
    return [mutant for mutant in sample[part::parts] if mutant.key not in done]


def build_objects(processes: int) -> None:
    """The object files, if only the extension is there: mutants compile one of them again."""
    force = [] if any((ROOT / "build").glob("temp*/csrc/*/*.o")) else ["--force"]
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", f"--parallel={processes}", *force]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


@final
class Judge:
    """In one copy. `unreliable`: tests that fail without a mutant too, where they run alone or after others."""

    def __init__(self, copy: TreeCopy, calls: Calls, arguments: argparse.Namespace, deadline: Deadline) -> None:
        self._copy = copy
        self._calls = calls
        self._arguments = arguments
        self._deadline = deadline
        self._reliable: dict[str, bool] = {}

    def tests(self, mutant: Mutant, seconds: float) -> list[str]:
        return [test for test in self._calls.of(mutant, seconds) if self._reliable.get(test, True)]

    def run(self, tests: list[str]) -> Verdict:
        return self._copy.run(tests, min(self._arguments.limit, self._deadline.left()))

    def verdict(self, mutant: Mutant) -> Verdict:
        """A test that fails must pass without the mutant; else it is left out."""
        while True:
            found = self._verdict(mutant)
            if found.status != "caught" or self._is_reliable(found.by) or self._deadline.is_over():
                return found

    def _is_reliable(self, test: str) -> bool:
        if test not in self._reliable:
            self._reliable[test] = test not in self._calls or self.run([test]).status == "survived"
        return self._reliable[test]

    def _verdict(self, mutant: Mutant) -> Verdict:
        quick = self.tests(mutant, self._arguments.quick)
        if not quick:
            return Verdict("untested")
        with self._copy.mutated(mutant):
            if mutant.path.startswith("csrc/") and not self._copy.build(min(BUILD_SECONDS, self._deadline.left())):
                return Verdict("broken", "does not compile")
            verdict = self.run(quick)
            rest = [test for test in self.tests(mutant, self._arguments.thorough) if test not in quick]
            if verdict.status == "survived" and rest:
                verdict = self.run(rest)
        return verdict


if __name__ == "__main__":
    sys.exit(main())
