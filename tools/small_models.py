"""`python tools/small_models.py`: small models that nobody tuned for, compiled against eager and torch.compile.

    model                       dtype  mode   eager, us  speed  torch.compile   first, s  torch.compile
    attention.RotaryAttention   f32    eval       412.0   2.31           1.87       0.21           14.2

The figures above only show the form. The models are every `--every`th module of the capture suite's research code
(`kiln_bench/capture/research`), with the inputs of the suite's third call. Speeds are eager's time over the
compiler's: medians of CPU times of one thread, in rounds of random order. First calls are in wall time, in one
process for all rows, so that kernels of earlier rows are there already. torch.compile is asked every `--peer`th row:
it takes most of the time.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
from collections.abc import Callable, Mapping
from itertools import product
from statistics import geometric_mean, median

import torch
from torch import nn

import kiln
from kiln_bench.capture.model_sources import of_research
from kiln_bench.capture.research.sample import SAMPLES, Sample

ROUNDS, ROUND_SECONDS = 9, 0.005
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
Step = Callable[[], object]
COMPILERS: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "kiln": kiln.compile,  # type: ignore[dict-item]
    "torch.compile": torch.compile,  # type: ignore[dict-item]
}


def total(found: object) -> torch.Tensor:
    """The sum of the tensors that are floating-point numbers, with gradients."""
    leaves = torch.utils._pytree.tree_leaves(found)
    return torch.stack(
        [each.float().sum() for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
    ).sum()


def step(sample: Sample, dtype: torch.dtype, mode: str, compiler: Callable[[nn.Module], nn.Module] | None) -> Step:
    """A call of the model; in training with all gradients."""
    model = copy.deepcopy(sample.model()).to(dtype).train(mode == "train")
    inputs = {
        name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in sample.calls()[2].items()
    }
    run = model if compiler is None else compiler(model)

    def evaluate() -> object:
        with torch.no_grad():
            return run(**inputs)

    def train() -> object:
        for parameter in model.parameters():
            parameter.grad = None
        total(run(**inputs)).backward()
        return None

    return train if mode == "train" else evaluate


def cpu_seconds(run: Step, times: int) -> float:
    before = time.thread_time()
    for _ in range(times):
        run()
    return (time.thread_time() - before) / times


def measured(sample: Sample, dtype: torch.dtype, mode: str, peer: bool) -> tuple[float, dict[str, tuple[float, float]]]:
    """Eager's seconds, and each compiler's speed and seconds of the first call."""
    steps = {"eager": step(sample, dtype, mode, None)}
    steps["eager"]()
    firsts: dict[str, float] = {}
    for name in COMPILERS if peer else ("kiln",):
        steps[name] = step(sample, dtype, mode, COMPILERS[name])
        before = time.perf_counter()
        steps[name]()
        firsts[name] = time.perf_counter() - before
    for run in steps.values():
        for _ in range(3):
            run()
    times = max(1, round(ROUND_SECONDS / cpu_seconds(steps["eager"], 2)))
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name in random.sample(list(steps), len(steps)):
            spent[name].append(cpu_seconds(steps[name], times))
    eager = median(spent["eager"])
    return eager, {name: (eager / median(spent[name]), firsts[name]) for name in firsts}


def line(name: str, dtype: str, mode: str, eager: float, found: Mapping[str, tuple[float, float]]) -> str:
    ours, peer = found["kiln"], found.get("torch.compile")
    other = ("", "") if peer is None else (f"{peer[0]:.2f}", f"{peer[1]:.1f}")
    text = f"{name:<40}{dtype:>6}{mode:>7}{eager * 1e6:>11.1f}{ours[0]:>7.2f}{other[0]:>15}"
    return f"{text}{ours[1]:>10.2f}{other[1]:>15}"


def main(given: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    list(of_research())  # fills SAMPLES
    rows = product(list(SAMPLES)[given.first :: given.every], DTYPES, ("eval", "train"))
    speeds: dict[str, list[float]] = {name: [] for name in COMPILERS}
    titles = f"{'eager, us':>11}{'speed':>7}{'torch.compile':>15}{'first, s':>10}{'torch.compile':>15}"
    print(f"{'model':<40}{'dtype':>6}{'mode':>7}{titles}")
    for number, (name, dtype, mode) in enumerate(rows, 1):
        torch.manual_seed(0)
        try:
            eager, found = measured(SAMPLES[name], DTYPES[dtype], mode, given.peer > 0 and number % given.peer == 0)
        except (RuntimeError, TypeError, ValueError) as problem:  # eager refuses some modules in some dtypes
            print(f"{name:<40}{dtype:>6}{mode:>7}  {type(problem).__name__}: {str(problem)[:60]!r}", flush=True)
            continue
        for compiler, (speed, _) in found.items():
            speeds[compiler].append(speed)
        print(line(name, dtype, mode, eager, found), flush=True)
    for compiler, each in speeds.items():
        if each:
            below = sum(speed < 1 for speed in each)
            print(f"{compiler}: geometric mean {geometric_mean(each):.2f} of {len(each)} rows, {below} below 1")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--peer", type=int, default=0, help="torch.compile runs every so many rows; 0: never")
    sys.exit(main(parser.parse_args()))
