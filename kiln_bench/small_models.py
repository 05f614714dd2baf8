"""`python -m kiln bench --suite small`: small models that nobody tuned for, a module of research code each.

    model               dtype   mode    eager, us   kiln  first, s
    RotaryAttention     f32     eval        412.0   2.31      0.21

The figures above only show the form. The modules are those of the capture suite (`capture/research`), with the inputs
of its third call; `--shard 7/20` takes every twentieth. On a GPU if there is one, else on one thread of a CPU, in CPU
time. Speeds are eager's time over the compiler's: medians of rounds in random order. First calls are in wall time, in
one process for all rows, so that kernels of earlier rows are there already.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median

import torch
from torch.utils import _pytree as pytree

from kiln_bench.candidates import candidate
from kiln_bench.capture.model_sources import of_research
from kiln_bench.capture.research.sample import SAMPLES, Sample
from kiln_bench.operators import times_in_turn
from kiln_bench.results import write_data

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
Step = Callable[[], object]


def total(found: object) -> torch.Tensor:
    """The sum of the tensors with gradients."""
    leaves = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return torch.stack([leaf.float().sum() for leaf in leaves]).sum()


def step_of(sample: Sample, dtype: torch.dtype, device: str, mode: str, compiler: str) -> Step:
    """A call of the model; in training with all gradients."""
    model = copy.deepcopy(sample.model()).to(device, dtype).train(mode == "train")

    def placed(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.to(device, dtype if leaf.is_floating_point() else leaf.dtype)

    inputs = pytree.tree_map(placed, dict(sample.calls()[2]))
    run = candidate(compiler, None).compile(model)

    def evaluate() -> object:
        with torch.no_grad():
            return run(**inputs)

    def train() -> object:
        model.zero_grad()
        return total(run(**inputs)).backward()  # type: ignore[no-untyped-call]

    return train if mode == "train" else evaluate


def measured(
    sample: Sample, dtype: torch.dtype, mode: str, candidates: Sequence[str], rounds: int
) -> tuple[float, dict[str, tuple[float, float]]]:
    """Eager's seconds, and each candidate's speed and seconds of the first call."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps = {name: step_of(sample, dtype, device, mode, name) for name in ("eager", *candidates)}
    first: dict[str, float] = {}
    for name, step in steps.items():
        begin = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        first[name] = time.perf_counter() - begin
    times = times_in_turn([*steps.values()], rounds, on_gpu=device == "cuda")
    middle = dict(zip(steps, map(median, times), strict=True))
    eager = middle["eager"]
    return eager, {name: (eager / middle[name], first[name]) for name in candidates}


def run(names: Sequence[str], candidates: Sequence[str], shard: str, rounds: int, path: Path | None) -> int:
    """`names`: classes of modules; all by default. A row that eager refuses, or a compiler fails on, says so."""
    torch.set_num_threads(1)
    list(of_research())  # imports the modules, which fills SAMPLES
    part, parts = map(int, shard.split("/"))
    heads = "".join(f"{name:>15}{'first, s':>10}" for name in candidates)
    print(f"{'model':<40}{'dtype':>6}{'mode':>7}{'eager, us':>11}{heads}")
    rows: dict[str, object] = {}
    speeds: dict[str, list[float]] = {name: [] for name in candidates}
    for name, dtype, mode in product(names or list(SAMPLES)[part::parts], DTYPES, ("eval", "train")):
        title = f"{name:<40}{dtype:>6}{mode:>7}"
        torch.manual_seed(0)
        try:
            eager, found = measured(SAMPLES[name], DTYPES[dtype], mode, candidates, rounds)
        except (RuntimeError, TypeError, ValueError) as problem:
            rows[title] = f"{type(problem).__name__}: {problem}"
            print(f"{title}  {str(rows[title])[:70]!r}", flush=True)
            continue
        rows[title] = eager, found
        for each, (speed, _) in found.items():
            speeds[each].append(speed)
        cells = "".join(f"{speed:>15.2f}{first:>10.2f}" for speed, first in found.values())
        print(f"{title}{eager * 1e6:>11.1f}{cells}", flush=True)
    for compiler, ratios in speeds.items():
        if ratios:
            below = sum(ratio < 1 for ratio in ratios)
            print(f"{compiler}: geometric mean {geometric_mean(ratios):.2f} of {len(ratios)} rows, {below} below 1")
    if path is not None:
        write_data(path, {"eager's seconds; speed and first call by candidate": rows})
    return 0
