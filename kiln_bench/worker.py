"""A measurement in its own process: prints a JSON line after each step and waits for a line before the next.

python -m kiln_bench.worker '{"task": "first", "suite": "cpu", "row": "gpt2/ones", "candidate": "kiln", ...}'
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TypeVar

import torch

from kiln_bench.accuracy import Seed, against_itself, compare, judge, worst_seed
from kiln_bench.candidates import Candidate, candidate
from kiln_bench.exports import measure_exports
from kiln_bench.models import Case, build, in_float64
from kiln_bench.suite import SuiteRow, load_suite
from kiln_bench.task import Errors, ExportFinding, Finding, Task
from kiln_bench.tiny import tiny

T = TypeVar("T")
SEEDS = (0, 1, 2, 3, 4)
WARM_UP = 4
"""Untimed calls before the first sample; CUDA graphs are recorded in them."""
CALLS_PER_SAMPLE = {"cpu": 1, "cuda": 2}
"""A GPU runs asynchronously: a sample is several calls between two synchronisations."""


def find_row(task: Task) -> SuiteRow:
    rows = {row.title: row for row in load_suite(task["suite"], train=task["train"]).rows}
    return rows[task["row"]]


def build_case(task: Task, seed: int = 0) -> Case:
    return build(find_row(task), train=task["train"], seed=seed, step=task.get("step", False))


Steps = Iterator[Finding]
"""The findings of a task; the worker waits for its turn before each step but the first."""


def measure_first(task: Task) -> Steps:
    """Seconds from calling the compiler to the first result, without imports; peak memory of the process.

    A tiny program is compiled before and timed on its own: what a compiler sets up once per machine is not the model's.
    """
    chosen = candidate(task["candidate"], task["mode"])
    chosen.prepare()
    case = build_case(task)
    if case.device == "cuda":
        case.run(case.subject)  # initialises the libraries, which is not the compiler's time
        torch.cuda.reset_peak_memory_stats()
    setup = set_up(chosen, case.device)
    start = time.perf_counter()
    compiled = chosen.compile_case(case)
    case.run(compiled)
    wait_for(case.device)
    found: Finding = {"setup_seconds": setup, "first_seconds": time.perf_counter() - start}
    found["peak_bytes"] = peak_bytes(case.device)
    found.update(chosen.facts(compiled))
    found["asks"] = asks_is_compiling(case)
    yield found


def set_up(chosen: Candidate, device: str) -> float:
    """Seconds of compiling and running `x * 2 + 1`."""
    start = time.perf_counter()
    with torch.no_grad():
        chosen.compile(lambda x: x * 2 + 1)(torch.ones(64, device=device))
    wait_for(device)
    chosen.forget()
    return time.perf_counter() - start


def asks_is_compiling(case: Case) -> bool:
    """Whether eager calls `torch.compiler.is_compiling`, by whatever name."""
    asked = False
    code = torch.compiler.is_compiling.__code__

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal asked
        asked = asked or frame.f_code is code

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        case.run(case.subject)
    finally:
        sys.setprofile(before)
    return asked


def peak_bytes(device: str) -> int:
    """Of GPU memory, or of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def release(device: str) -> None:
    """Free GPU memory for other processes while this one waits."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def measure_steady(task: Task) -> Steps:
    """Compile and warm up; take samples, one per candidate and round, each round in random order; measure errors."""
    names, order = list(task["candidates"]), random.Random(task["row"])
    order.shuffle(names)
    case = build_case(task)
    compiled = {}
    for name in names:
        chosen = candidate(name, task["mode"])
        chosen.prepare()
        compiled[name] = chosen.compile_case(case)
        for _ in range(WARM_UP):
            case.run(compiled[name])
    release(case.device)
    yield {}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(task["pairs"]):
        for name in order.sample(names, len(names)):
            times[name].append(timed(case, compiled[name]))
    release(case.device)
    yield {"times": times}
    found = errors(task, case, {name: compiled[name] for name in names if name != "eager"})
    release(case.device)
    yield {"errors": found}


def timed(case: Case, model: Callable[..., object]) -> float:
    """Seconds of one call, the mean of a sample."""
    calls = CALLS_PER_SAMPLE[case.device]
    wait_for(case.device)
    start = time.perf_counter()
    for _ in range(calls):
        case.run(model)
    wait_for(case.device)
    return (time.perf_counter() - start) / calls


def errors(task: Task, base: Case, compiled: Mapping[str, Callable[..., object]]) -> dict[str, Errors]:
    """The verdict over the seeds, per candidate. Seeds change weights and data of the compiled model."""
    seeds: dict[str, list[Seed]] = {name: [] for name in compiled}
    for seed in SEEDS[: task["seeds"]]:
        case = build_case(task, seed)
        weights = case.model.state_dict() if isinstance(base.model, torch.nn.Module) else {}

        def fresh(weights: Mapping[str, object] = weights) -> None:
            """Steps change the weights."""
            if weights:
                base.model.load_state_dict(weights)

        fresh()
        case.model, case.optimizer = base.model, base.optimizer
        reference, eager = reference_of(case), copies(case.run(case.subject))
        release(case.device)
        for name, model in compiled.items():
            fresh()
            seeds[name].append(compare(copies(case.run(model)), eager, reference, case.autocast))
    return {name: summary(found) for name, found in seeds.items()}


def summary(seeds: list[Seed]) -> Errors:
    verdict, worst = judge(seeds), worst_seed(seeds)
    found: Errors = {
        "ratio": verdict.ratio, "l2": verdict.ours.l2, "eager_l2": verdict.eager.l2, "place": verdict.tensor,
        "one_seed": worst.ratio, "one_seed_place": worst.tensor,
    }  # fmt: skip
    if len(seeds) > 1:
        found["eager_one_seed"] = worst_seed(against_itself(seeds)).ratio
    return found


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """With CUDA graphs, the next call of torch.compile overwrites its outputs."""
    return [tensor.clone() for tensor in tensors]


def reference_of(case: Case) -> list[torch.Tensor]:
    """The results in float64."""
    wide = in_float64(case)
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in wide.run(wide.model)]


def measure_export(task: Task) -> Iterator[ExportFinding]:
    """Programs and packages of a row, or of a small form of it."""
    row = find_row(task)
    case = build(tiny(row) if task["small"] else row, train=False, seed=0)
    return measure_exports(case, task["pairs"], task["calls"])


TASKS: dict[str, Callable[[Task], Iterator[Finding] | Iterator[ExportFinding]]] = {
    "first": measure_first,
    "steady": measure_steady,
    "export": measure_export,
}


def main() -> None:
    task: Task = json.loads(sys.argv[1])
    if task["cores"]:
        os.sched_setaffinity(0, task["cores"])
    torch.set_num_threads(task["threads"])
    for found in TASKS[task["task"]](task):
        print(json.dumps(found), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
