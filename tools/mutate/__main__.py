"""Changes one thing of the sources at a time and runs the related tests: which changes does no test notice?

    python -m tools.mutate calls tests/fusion tests/loops     note which functions each test calls (build/mutate/)
    python -m tools.mutate run --count 400 --seed 0           a sample; goes on where an earlier run stopped
    python -m tools.mutate run --known                        those of known.toml, which once survived
    python -m tools.mutate run --only kiln/loops --shard 1/4  a part of the sources, a quarter of the sample
    python -m tools.mutate run --again                        survivors of the journal, after tests were added
    python -m tools.mutate table                              what was caught, by folder, and each survivor

The journal (build/mutate/journal.jsonl) has a line per mutant. A survivor is a missing test, or equivalent: then
survivors.toml says why.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

from tools.mutate.copy_of_tree import TreeCopy, Verdict
from tools.mutate.mutants import Mutant, mutants_of
from tools.mutate.selection import Calls

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WORK = ROOT / "build" / "mutate"
CALLS, JOURNAL = WORK / "calls.jsonl", WORK / "journal.jsonl"
LEFT_OUT = ("kiln/cli/", "kiln/native/", "kiln/report/")
"""The benchmark, stubs, and texts."""
QUICK, THOROUGH = 8.0, 60.0
"""Seconds of tests that a mutant is given first, and if it survived those."""
STARTING = 90.0
"""Seconds for the start of the tests on a busy machine; a run may take ten times its tests' seconds besides."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    calls = commands.add_parser("calls")
    calls.add_argument("tests", nargs="+")
    run = commands.add_parser("run")
    run.add_argument("--count", type=int, default=400)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--shard", default="0/1", help="part/parts of the sample")
    run.add_argument("--only", default="", help="files whose path begins so")
    run.add_argument("--known", action="store_true")
    run.add_argument("--again", action="store_true")
    commands.add_parser("table")
    arguments = parser.parse_args()
    if arguments.command == "calls":
        options = ["-q", "-p", "no:cacheprovider", "-p", "tools.mutate.calls", "--calls", str(CALLS)]
        return subprocess.run([sys.executable, "-m", "pytest", *options, *arguments.tests], cwd=ROOT).returncode
    return run_mutants(arguments) if arguments.command == "run" else print_table()


def all_mutants(only: str = "") -> Iterator[Mutant]:
    paths = [*(ROOT / "kiln").rglob("*.py"), *(ROOT / "kiln" / "loops").rglob("*.h")]
    paths += [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".cpp", ".h")]
    for path in sorted(paths):
        name = str(path.relative_to(ROOT))
        if not name.startswith(LEFT_OUT) and name.startswith(only):
            yield from mutants_of(path, ROOT)


def known_mutants() -> list[Mutant]:
    """Changes of text that are written down, with a name."""
    found = []
    for known in tomllib.loads((HERE / "known.toml").read_text())["mutant"]:
        source = (ROOT / known["path"]).read_bytes()
        old, start = known["old"].encode(), source.find(known["old"].encode())
        if start < 0 or source.count(old) != 1:
            raise SystemExit(
                f"known.toml: {known['name']}: the text stands {source.count(old)} times in {known['path']}"
            )
        line = source.count(b"\n", 0, start) + 1
        found.append(
            Mutant(known["path"], line, known_function(source, line), "known", known["old"], known["new"], start,
                   start + len(old), known["name"])
        )  # fmt: skip
    return found


def known_function(source: bytes, line: int) -> int | None:
    """The first line of the innermost function around a line, as `mutants_of` would say."""
    found: int | None = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            found = max(found or 0, min([node.lineno, *(d.lineno for d in node.decorator_list)]))
    return found


def chosen(arguments: argparse.Namespace, done: dict[str, str]) -> list[Mutant]:
    if arguments.known:
        return known_mutants()
    found = list(all_mutants(arguments.only))
    if arguments.again:
        argued = arguments_of_survivors()
        return [mutant for mutant in found if done.get(mutant.key) == "survived" and mutant.key not in argued]
    random.Random(arguments.seed).shuffle(found)
    part, parts = map(int, arguments.shard.split("/"))
    return [mutant for mutant in found[: arguments.count][part::parts] if mutant.key not in done]


def journal() -> dict[str, dict[str, str]]:
    """Mutant -> its last line."""
    if not JOURNAL.exists():
        return {}
    return {line["mutant"]: line for line in map(json.loads, JOURNAL.read_text().splitlines())}


def run_mutants(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    calls = Calls.read(CALLS, ROOT)
    mutants = chosen(arguments, {key: line["status"] for key, line in journal().items()})
    with tempfile.TemporaryDirectory(prefix="kiln-mutate-") as folder:
        copy = TreeCopy(ROOT, Path(folder))
        copy.run(["tests/tools", "tests/boundary", "tests/api/test_compile.py"], 600.0, write_bytecode=True)
        for mutant in mutants:
            start = time.monotonic()
            verdict = judge(mutant, copy, calls)
            line = {
                "mutant": mutant.key, "status": verdict.status, "by": verdict.by,
                "seconds": round(time.monotonic() - start, 1), "line": mutant.line,
            }  # fmt: skip
            with JOURNAL.open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(f"{verdict.status:9} {mutant.key} {verdict.by}", flush=True)
    return 0


def judge(mutant: Mutant, copy: TreeCopy, calls: Calls) -> Verdict:
    quick = calls.of(mutant, QUICK)
    if not quick:
        return Verdict("untested")
    builds = mutant.path.startswith("csrc/")
    with copy.mutated(mutant):
        if builds and not copy.build(900.0):
            verdict = Verdict("broken", "does not compile")
        else:
            verdict = copy.run(quick, STARTING + 10 * QUICK)
            rest = [test for test in calls.of(mutant, THOROUGH) if test not in quick]
            if verdict.status == "survived" and rest:
                verdict = copy.run(rest, STARTING + 10 * THOROUGH)
    if builds:
        copy.build(900.0)
    return verdict


def arguments_of_survivors() -> dict[str, str]:
    return dict(tomllib.loads((HERE / "survivors.toml").read_text())["equivalent"])


def print_table() -> int:
    """By folder; 1 if a survivor is neither argued nor caught."""
    argued = arguments_of_survivors()
    by_folder: dict[str, Counter[str]] = defaultdict(Counter)
    open_ones: list[str] = []
    for key, line in sorted(journal().items()):
        status = "argued" if key in argued and line["status"] == "survived" else line["status"]
        by_folder["/".join(key.split("/")[:2])][status] += 1
        if status == "survived":
            open_ones.append(f"  {key} (line {line['line']})")
    total: Counter[str] = sum(by_folder.values(), Counter())
    heads = ("caught", "timeout", "survived", "argued", "untested", "broken")
    print(f"{'':20}" + "".join([f"{head:>10}" for head in heads]))
    for folder, counts in [*by_folder.items(), ("all", total)]:
        print(f"{folder:20}" + "".join([f"{counts[head]:10}" for head in heads]))
    tested = total["caught"] + total["timeout"] + total["survived"] + total["argued"] + total["untested"]
    print(f"caught: {(total['caught'] + total['timeout']) / max(1, tested):.1%} of {tested}")
    print("\n".join(["survivors:", *open_ones]))
    return int(bool(open_ones))


if __name__ == "__main__":
    sys.exit(main())
