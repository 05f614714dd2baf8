"""`python -m kiln bench`: the same model and inputs, in random order, in one run.

    python -m kiln bench --suite cpu --against eager,torch.compile --json out.json
    python -m kiln bench --suite cpu --against onnxrt,openvino       # Kiln's capture, other compilers
    python -m kiln bench --suite cpu --train --models bert-base,gpt2,resnet50
    python -m kiln bench --suite cpu --train-step --models gpt2      # with AdamW, the whole step compiled

For each row: the first call of each candidate in a fresh process with empty caches, after a tiny program whose time is
reported as set-up; then one process in which each round calls all candidates in random order. Where a program asks
`torch.compiler.is_compiling()`, Kiln is also measured with the answer that it does not give by itself. With
`--together 4` four rows are compiled at the same time, each on its own cores, and then timed one after the other.

The exit status is 1 if Kiln fails on a row, or its errors over all seeds are above the bound (`accuracy.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from kiln_bench.candidates import ANSWERS
from kiln_bench.measures import MEASURES
from kiln_bench.results import Result, Score, is_wrong, plot, rows_of, score_times, table, write_json
from kiln_bench.suite import SuiteRow, load_suite
from kiln_bench.task import Finding, Task
from kiln_bench.turns import BenchWorker, cores_of

MODELS = ("cpu", "gpu", "micro")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=(*MODELS, *MEASURES), default="cpu")
    parser.add_argument(
        "--against",
        default="eager,torch.compile",
        help="comma list of torch.compile and Kiln's back ends; kiln:reduce-overhead has a mode of its own",
    )
    parser.add_argument("--train", action="store_true", help="training step: loss and all gradients")
    parser.add_argument("--train-step", action="store_true", help="the same with AdamW, compiled as a whole")
    parser.add_argument("--mode", choices=("default", "reduce-overhead"), default="default", help="of both compilers")
    parser.add_argument("--models", default="", help="comma list; default: all of the suite")
    parser.add_argument("--pairs", type=int, default=30, help="rounds of calls (at least 30 to report)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the accuracy check")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--together", type=int, default=1, help="rows that are compiled at the same time")
    parser.add_argument("--no-first", action="store_true", help="skip the first-call processes")
    parser.add_argument(
        "--libraries", default="transformers", help="suite capture: also timm, torch (its modules), research"
    )
    parser.add_argument("--shard", default="0/1", help="suites capture and small: every n-th model, 0/4 to 3/4")
    parser.add_argument("--modes", default="eval,train,generate", help="suite capture: also export")
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="suites capture and distributed: time limit of a model"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)


def run(arguments: argparse.Namespace) -> int:
    candidates = [name for name in arguments.against.split(",") if name and name != "eager"] + ["kiln"]
    arguments.train |= arguments.train_step
    if arguments.suite in MEASURES:
        return MEASURES[arguments.suite](arguments, candidates)
    rows = chosen_rows(load_suite(arguments.suite, train=arguments.train).rows, arguments.models)
    ended = end_on_sigterm()
    results = []
    for begin in range(0, len(rows), arguments.together):
        if ended.is_set():
            break
        done = measure(rows[begin : begin + arguments.together], candidates, arguments)
        results += done
        print("\n".join([line for result in done for line in rows_of(result)]), flush=True)
        if arguments.json:
            write_json(arguments.json, results)
    print(table(results, candidates))
    if arguments.plot:
        plot(arguments.plot, results, candidates)
    return int(any([is_wrong(result.scores["kiln"]) for result in results]))


def end_on_sigterm() -> threading.Event:
    """Set once a limit of time has ended the process: as after Ctrl-C, what was found until then is shown."""
    ended = threading.Event()

    def interrupt(*_: object) -> None:
        ended.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    return ended


def chosen_rows(rows: Sequence[SuiteRow], models: str) -> list[SuiteRow]:
    """Those of a comma list of names or titles; all of an empty one. Exits for a name that no row has."""
    wanted = list(filter(None, models.split(",")))
    known = {name for row in rows for name in (row.name, row.title)}
    if missing := [name for name in wanted if name not in known]:
        raise SystemExit(f"the suite has no model {missing[0]!r}; it has {', '.join({row.name: 0 for row in rows})}")
    return [row for row in rows if not wanted or row.name in wanted or row.title in wanted]


def measure(rows: list[SuiteRow], candidates: list[str], arguments: argparse.Namespace) -> list[Result]:
    """All candidates on some rows. Where a candidate fails, the others go on."""
    caches = Path(tempfile.mkdtemp(prefix="kiln-bench-"))
    try:
        firsts: list[dict[str, Finding]] = [{} for _ in rows]
        for name in [] if arguments.no_first else random.sample(candidates, len(candidates)):
            first_calls(name, rows, range(len(rows)), firsts, arguments, caches)
        for name, answer in ANSWERS.items():  # the answer that Kiln did not give by itself
            asked = [first.get("kiln", {}) for first in firsts]
            others = [number for number, kiln in enumerate(asked) if kiln.get("asks") and kiln["answer"] != answer]
            first_calls(name, rows, others, firsts, arguments, caches)
        tasks: list[Task] = []
        for row, first in zip(rows, firsts, strict=True):
            names = dict.fromkeys([*candidates, *first])
            able = [name for name in names if "failure" not in first.get(name, {})]
            tasks.append({
                "task": "steady", "candidates": ["eager", *able], "row": row.title, "pairs": arguments.pairs,
                "seeds": arguments.seeds,
            })  # fmt: skip
        alone = (TIMED, COMPARED) if rows[0].device == "cuda" else (TIMED,)  # models in float64 fill a GPU
        steady = in_steps(start(tasks, arguments, caches / "steady"), 3, alone)
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    return [result_of(row, found, first, candidates) for row, found, first in zip(rows, steady, firsts, strict=True)]


def first_calls(
    name: str,
    rows: list[SuiteRow],
    numbers: Sequence[int],
    found: list[dict[str, Finding]],
    arguments: argparse.Namespace,
    caches: Path,
) -> None:
    """Add the first call of the candidate `name` for the rows of these `numbers`."""
    tasks: list[Task] = [{"task": "first", "candidate": name, "row": rows[number].title} for number in numbers]
    for number, finding in zip(
        numbers, in_steps(start(tasks, arguments, caches / name.replace(", ", "-")), 1), strict=True
    ):
        found[number][name] = finding


TIMED, COMPARED = 1, 2
"""The steps of a worker that are timed, and that compare results with float64."""


def in_steps(workers: list[BenchWorker], count: int, alone: tuple[int, ...] = ()) -> list[Finding]:
    """What the workers find in `count` steps; the steps `alone` are for one worker at a time."""
    found: list[Finding] = [{} for _ in workers]
    with contextlib.suppress(KeyboardInterrupt):  # shows what was found until then
        for step in range(count):
            if step not in alone:
                for worker in workers:
                    worker.go_on()
            for worker, finding in zip(workers, found, strict=True):
                finding.update(worker.next())
                if step == count - 1:
                    worker.close()  # frees its GPU memory for the next ones
    for worker in workers:
        worker.close()
    return found


def result_of(row: SuiteRow, steady: Finding, firsts: dict[str, Finding], candidates: list[str]) -> Result:
    failures = {name: first for name, first in firsts.items() if "failure" in first}
    if "times" not in steady:
        return Result(row.title, float("nan"), {name: failed(steady) for name in candidates})
    eager = steady["times"]["eager"]
    scores = {name: failed(problem) for name, problem in failures.items()}
    for name, times in steady["times"].items():
        if name == "eager":
            continue
        score, errors = score_times(eager, times), steady.get("errors", {}).get(name)
        scores[name] = score
        first = firsts.get(name, {})
        score.first_seconds, score.peak_bytes = first.get("first_seconds"), first.get("peak_bytes")
        score.facts = {key: value for key, value in first.items() if key not in ("first_seconds", "peak_bytes")}
        if errors is not None:
            score.error_ratio = errors["ratio"]
            score.facts |= errors
        if "errors" not in steady:
            score.facts["not_compared"] = failed(steady).failure, failed(steady).facts["stderr"]
    order = {name: place for place, name in enumerate([*candidates, *ANSWERS])}
    ordered = {name: scores[name] for name in sorted(scores, key=order.__getitem__)}
    return Result(row.title, median(eager), ordered, any([bool(first.get("asks")) for first in firsts.values()]))


def start(tasks: list[Task], arguments: argparse.Namespace, caches: Path) -> list[BenchWorker]:
    """A worker for each task, on its own cores if there are several, with its caches below `caches`."""
    workers = []
    for number, task in enumerate(tasks):
        common: Task = {
            "suite": arguments.suite, "train": arguments.train, "step": arguments.train_step,
            "threads": arguments.threads,
            "cores": cores_of(number, arguments.threads) if len(tasks) > 1 else [],
            "mode": None if arguments.mode == "default" else arguments.mode,
        }  # fmt: skip
        workers.append(BenchWorker({**common, **task}, caches / str(number)))
    return workers


def failed(found: Finding) -> Score:
    """The score of a process that ended early, with the end of its output."""
    nothing = float("nan")
    facts: dict[str, object] = {"stderr": str(found.get("stderr", ""))[-4000:]}
    return Score(nothing, nothing, nothing, failure=found.get("failure", "stopped"), facts=facts)
