"""`python -m kiln demo`: BERT-base inference (random weights, float32, CPU).

Prints the seconds of the first call, the times of eager and Kiln, their errors against float64, and the report.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch

import kiln.api as api
from kiln_bench.accuracy import compare, judge
from kiln_bench.models import Case, build
from kiln_bench.results import score_times
from kiln_bench.suite import load_suite
from kiln_bench.worker import reference_of, timed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=30, help="alternating pairs of calls")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)


def run(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(arguments.threads)
    row = next(row for row in load_suite("cpu").rows if row.title == "bert-base/none")
    case = build(row, train=False, seed=0)
    compiled = api.compile(case.model, options={"cache": False})
    start = time.perf_counter()
    ours = case.run(compiled)
    first = time.perf_counter() - start
    eager = case.run(case.model)
    verdict = judge([compare(ours, eager, reference_of(case))])
    score = score_times(*alternate(case, compiled, arguments.pairs))
    print(f"first call     {first:.2f} s (capture, compile and run; g++ included)")
    print(f"speed          {score.speed:.3f} times eager, 95 % interval {score.low:.3f} .. {score.high:.3f}")
    print(f"error (L2)     kiln {verdict.ours.l2:.2e}, eager {verdict.eager.l2:.2e}: "
          f"{verdict.ratio:.2f} of the bound")  # fmt: skip
    print(api.report_of(compiled).text())
    return 0 if verdict.right else 1


def alternate(case: Case, compiled: Callable[..., object], pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of eager and of `compiled`, alternating."""
    for model in (case.model, compiled):
        timed(case, model)
    eager, ours = [], []
    for _ in range(pairs):
        eager.append(timed(case, case.model))
        ours.append(timed(case, compiled))
    middle = pairs // 2
    print(f"time           eager {sorted(eager)[middle] * 1e3:.1f} ms, kiln {sorted(ours)[middle] * 1e3:.1f} ms")
    return eager, ours
