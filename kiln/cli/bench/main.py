"""`python -m kiln bench`: the same model and inputs, alternating, in one run.

    python -m kiln bench --suite cpu --against eager,torch.compile --json out.json
    python -m kiln bench --suite cpu --train --models bert-base,gpt2,resnet50

For each row: the first call of each candidate in a fresh process with empty caches; then one process in which the
candidates' calls alternate. Geometric mean and minimum stand last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from kiln.cli.bench import overhead
from kiln.cli.bench.results import Result, Score, plot, score_times, table, write_json
from kiln.cli.bench.suite import Row, load_suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=("cpu", "gpu", "micro", "overhead"), default="cpu")
    parser.add_argument("--against", default="eager,torch.compile", help="comma list of eager, torch.compile")
    parser.add_argument("--train", action="store_true", help="training step: loss and all gradients")
    parser.add_argument("--mode", choices=("default", "reduce-overhead"), default="default", help="of both compilers")
    parser.add_argument("--models", default="", help="comma list; default: all of the suite")
    parser.add_argument("--pairs", type=int, default=30, help="alternating pairs of calls (at least 30 to report)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the accuracy check")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-first", action="store_true", help="skip the first-call processes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)


def run(arguments: argparse.Namespace) -> int:
    if arguments.suite == "overhead":
        return overhead.run(arguments.pairs, "torch.compile" in arguments.against)
    wanted = set(filter(None, arguments.models.split(",")))
    rows = [
        row
        for row in load_suite(arguments.suite, train=arguments.train).rows
        if not wanted or {row.name, row.title} & wanted
    ]
    candidates = [name for name in arguments.against.split(",") if name and name != "eager"] + ["kiln"]
    results = []
    for row in rows:
        result = measure(row, candidates, arguments)
        results.append(result)
        print(table([result], candidates).splitlines()[2], flush=True)
    print(table(results, candidates))
    if arguments.json:
        write_json(arguments.json, results, "python -m kiln " + " ".join(sys.argv[1:]))
    if arguments.plot:
        plot(arguments.plot, results, candidates)
    return 0


def measure(row: Row, candidates: list[str], arguments: argparse.Namespace) -> Result:
    """All candidates on one row. A candidate that fails keeps its failure; the others go on."""
    firsts: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    caches = Path(tempfile.mkdtemp(prefix="kiln-bench-"))
    try:
        for name in [] if arguments.no_first else candidates:
            firsts[name] = worker({"task": "first", "candidate": name, "row": row.title}, arguments, caches)
            if "failure" in firsts[name]:
                failures[name] = firsts[name]["failure"]
        running = ["eager", *(name for name in candidates if name not in failures)]
        task = {"task": "steady", "candidates": running, "row": row.title, "pairs": arguments.pairs}
        steady = worker({**task, "seeds": arguments.seeds}, arguments, caches)
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    if "failure" in steady:
        nothing = float("nan")
        return Result(row.title, nothing, {name: failed(steady["failure"]) for name in candidates})
    eager = steady["times"]["eager"]
    scores = {name: failed(problem) for name, problem in failures.items()}
    for name in running[1:]:
        score = scores[name] = score_times(eager, steady["times"][name])
        first = firsts.get(name, {})
        score.first_seconds, score.peak_bytes = first.pop("first_seconds", None), first.pop("peak_bytes", None)
        score.error_ratio, score.facts = steady["errors"][name]["ratio"], {**first, **steady["errors"][name]}
    return Result(row.title, median(eager), scores)


def failed(problem: str) -> Score:
    nothing = float("nan")
    return Score(nothing, nothing, nothing, failure=problem)


def worker(given: dict[str, Any], arguments: argparse.Namespace, caches: Path) -> dict[str, Any]:
    """Run one task in a fresh process whose caches lie below `caches`, per candidate."""
    task = {"suite": arguments.suite, "train": arguments.train, "threads": arguments.threads}
    task |= {"mode": None if arguments.mode == "default" else arguments.mode, **given}
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "KILN_OPTIONS": f"cache_dir={caches / 'kiln'}",
    }
    command = [sys.executable, "-m", "kiln.cli.bench.worker", json.dumps(task)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"failure": last[0], "stderr": done.stderr}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))
