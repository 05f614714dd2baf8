"""`python -m kiln bench`: the same model and inputs, alternating, in one run.

    python -m kiln bench --suite cpu --against eager,torch.compile --json out.json
    python -m kiln bench --suite cpu --train --models bert-base,gpt2,resnet50

For each row: the first call of each candidate in a fresh process with empty caches; then one process in which the
candidates' calls alternate. Geometric mean and minimum stand last. With `--together 4` four rows are compiled at the
same time, each on cores of its own, and then timed one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from kiln.cli.bench import bandwidth, compile_time, overhead
from kiln.cli.bench.results import Result, Score, plot, score_times, table, write_json
from kiln.cli.bench.suite import SuiteRow, load_suite
from kiln.cli.bench.turns import BenchWorker, cores_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=("cpu", "gpu", "micro", "overhead", "bandwidth", "compile"), default="cpu")
    parser.add_argument("--against", default="eager,torch.compile", help="comma list of eager, torch.compile")
    parser.add_argument("--train", action="store_true", help="training step: loss and all gradients")
    parser.add_argument("--mode", choices=("default", "reduce-overhead"), default="default", help="of both compilers")
    parser.add_argument("--models", default="", help="comma list; default: all of the suite")
    parser.add_argument("--pairs", type=int, default=30, help="alternating pairs of calls (at least 30 to report)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the accuracy check")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--together", type=int, default=1, help="rows that are compiled at the same time")
    parser.add_argument("--no-first", action="store_true", help="skip the first-call processes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)


def run(arguments: argparse.Namespace) -> int:
    if arguments.suite == "overhead":
        return overhead.run(arguments.pairs, "torch.compile" in arguments.against)
    if arguments.suite == "compile":
        return compile_time.run(arguments.threads, arguments.json)
    candidates = [name for name in arguments.against.split(",") if name and name != "eager"] + ["kiln"]
    if arguments.suite == "bandwidth":
        return bandwidth.run(arguments.pairs, candidates, arguments.json)
    wanted = set(filter(None, arguments.models.split(",")))
    rows = [
        row
        for row in load_suite(arguments.suite, train=arguments.train).rows
        if not wanted or {row.name, row.title} & wanted
    ]
    results = []
    for begin in range(0, len(rows), arguments.together):
        done = measure(rows[begin : begin + arguments.together], candidates, arguments)
        results += done
        print("\n".join(table(done, candidates).splitlines()[2 : 2 + len(done)]), flush=True)
    print(table(results, candidates))
    if arguments.json:
        write_json(arguments.json, results)
    if arguments.plot:
        plot(arguments.plot, results, candidates)
    return 0


Found = dict[str, Any]


def measure(rows: list[SuiteRow], candidates: list[str], arguments: argparse.Namespace) -> list[Result]:
    """All candidates on some rows. A candidate that fails keeps its failure; the others go on."""
    caches = Path(tempfile.mkdtemp(prefix="kiln-bench-"))
    try:
        firsts: dict[str, list[Found]] = {}
        for name in [] if arguments.no_first else candidates:
            tasks: list[Found] = [{"task": "first", "candidate": name, "row": row.title} for row in rows]
            firsts[name] = in_steps(start(tasks, arguments, caches / "first"), 1)
        tasks = []
        for place, row in enumerate(rows):
            able = [name for name in candidates if "failure" not in firsts.get(name, [{}] * len(rows))[place]]
            tasks.append({
                "task": "steady", "candidates": ["eager", *able], "row": row.title, "pairs": arguments.pairs,
                "seeds": arguments.seeds,
            })  # fmt: skip
        alone = (TIMED, COMPARED) if rows[0].device == "cuda" else (TIMED,)  # models in float64 fill a GPU
        steady = in_steps(start(tasks, arguments, caches / "steady"), 3, alone)
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    return [
        result_of(row, found, {name: found_first[place] for name, found_first in firsts.items()}, candidates)
        for place, (row, found) in enumerate(zip(rows, steady, strict=True))
    ]


TIMED, COMPARED = 1, 2
"""Steps of a worker in which the clock runs, and in which results are compared with float64."""


def in_steps(workers: list[BenchWorker], count: int, alone: tuple[int, ...] = ()) -> list[Found]:
    """What the workers find in `count` steps; the steps `alone` are for one worker at a time."""
    found: list[Found] = [{} for _ in workers]
    with contextlib.suppress(KeyboardInterrupt):  # what was found until then is shown
        for step in range(count):
            if step not in alone:
                for worker in workers:
                    worker.go_on()
            for worker, one in zip(workers, found, strict=True):
                one |= worker.next()
                if step == count - 1:
                    worker.close()  # what it holds of the GPU is free for those after it
    for worker in workers:
        worker.close()
    return found


def result_of(row: SuiteRow, steady: Found, firsts: dict[str, Found], candidates: list[str]) -> Result:
    failures = {name: first for name, first in firsts.items() if "failure" in first}
    if "times" not in steady:
        return Result(row.title, float("nan"), {name: failed(steady) for name in candidates})
    eager = steady["times"]["eager"]
    scores = {name: failed(problem) for name, problem in failures.items()}
    for name, times in steady["times"].items():
        if name == "eager":
            continue
        score, errors = score_times(eager, times), steady.get("errors", {}).get(name, {})
        scores[name] = score
        first = firsts.get(name, {})
        score.first_seconds, score.peak_bytes = first.pop("first_seconds", None), first.pop("peak_bytes", None)
        score.error_ratio, score.facts = errors.get("ratio"), {**first, **errors}
        if "errors" not in steady:
            score.facts["not_compared"] = failed(steady).failure, failed(steady).facts["stderr"]
    return Result(row.title, median(eager), scores)


def start(tasks: list[Found], arguments: argparse.Namespace, caches: Path) -> list[BenchWorker]:
    """A worker for each task, on cores of its own where there are several; its caches lie below `caches`."""
    workers = []
    for place, task in enumerate(tasks):
        cores = cores_of(place, arguments.threads) if len(tasks) > 1 else []
        common = {"suite": arguments.suite, "train": arguments.train, "threads": arguments.threads, "cores": cores}
        mode = None if arguments.mode == "default" else arguments.mode
        workers.append(BenchWorker({**common, "mode": mode, **task}, caches / str(place)))
    return workers


def failed(found: Found) -> Score:
    """The last line of what the process wrote, and its last lines for who looks for the cause."""
    nothing = float("nan")
    facts = {"stderr": str(found.get("stderr", ""))[-4000:]}
    return Score(nothing, nothing, nothing, failure=found.get("failure", "stopped"), facts=facts)
