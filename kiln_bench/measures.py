"""The suites of `python -m kiln bench` that measure parts of Kiln, or its capture of other people's models."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kiln.support.late import late
from kiln_bench import (
    bandwidth,
    compile_time,
    exports,
    launch,
    memory,
    operators,
    optimizers,
    overhead,
    products,
    reductions,
    small_models,
    starts,
)
from kiln_bench.capture import main as capture


def run_capture(given: argparse.Namespace, candidates: list[str]) -> int:
    libraries = [*filter(None, given.libraries.split(","))]
    models, modes = set(filter(None, given.models.split(","))), given.modes.split(",")
    return capture.run(libraries, models, candidates, modes, given.shard, given.threads, given.seconds, given.json)


def run_export(given: argparse.Namespace, candidates: list[str]) -> int:
    models = list(filter(None, given.models.split(",")))
    return exports.run(models, given.threads, EXPORT_ROUNDS, given.pairs, given.json)


def run_start(given: argparse.Namespace, candidates: list[str]) -> int:
    return starts.run(list(filter(None, given.models.split(","))), START_ROUNDS, given.pairs, given.json)


START_ROUNDS = 3
"""Processes of each kind."""
EXPORT_ROUNDS = 3
"""Exports of each row."""


if TYPE_CHECKING:
    from kiln_bench.distributed import run as run_distributed
else:
    run_distributed = late("kiln_bench.distributed", "run")  # it loads torch's DTensor


MEASURES: Mapping[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "bandwidth": lambda given, candidates: bandwidth.run(given.pairs, candidates, given.json),
    "capture": run_capture,
    "compile": lambda given, candidates: compile_time.run(given.threads, given.json),
    "distributed": lambda given, candidates: run_distributed(
        candidates, [*filter(None, given.models.split(","))], given.seconds, given.json, whole_step=given.train_step
    ),
    "export": run_export,
    "launch": lambda given, candidates: launch.run(given.pairs, given.json),
    "memory": lambda given, candidates: memory.run(given.pairs, given.json, given.plot),
    "operators": lambda given, candidates: operators.run(given.pairs, given.models, given.json),
    "optimizer": lambda given, candidates: optimizers.run(given.pairs, candidates, given.json),
    "overhead": lambda given, candidates: overhead.run(given.pairs, "torch.compile" in candidates, given.json),
    "products": lambda given, candidates: products.run(given.pairs, given.json),
    "start": run_start,
    "small": lambda given, candidates: small_models.run(
        [*filter(None, given.models.split(","))], candidates, given.shard, given.pairs, given.json
    ),
    "reductions": lambda given, candidates: reductions.run(given.pairs, candidates, given.json),
}
"""Each gets the arguments of the command line, and the compilers to measure."""
