"""`python -m kiln bench --suite memory`: time of a training step against the memory between forward and backward.

    budget    saved MB    step ms
    eager         52.4       61.0
    1.00          21.2       44.1
    0.50           9.9       47.3
    0.00           0.1       58.2

The figures above only show the form. A row per value of the option `memory_budget`, for one encoder. Saved: what the
pool of large buffers holds for the graph (eager: the tensors that autograd saves, once each, without parameters and
inputs). Time: of this process on its CPUs, a median, candidates in turns. `--plot` draws it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

import kiln
from kiln.native._executor import held_memory
from kiln.support.optional import load_required
from kiln_bench.results import write_data

BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)
EAGER = "eager"
LAYERS, WIDTH, HEADS, BATCH, LENGTH = 4, 128, 4, 8, 128


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def saved_by_eager(run: Callable[[], Tensor], known: set[int]) -> int:
    """Bytes of the memory that autograd keeps, without that of `known` pointers."""
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in known:
            found[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run()
    del loss
    return sum(found.values())


def measured(samples: int) -> dict[str, tuple[int, float]]:
    """For each candidate: bytes that are saved, seconds of a step."""
    torch.manual_seed(0)
    model, x = encoder(), torch.randn(BATCH, LENGTH, WIDTH)
    compiled = {
        f"{budget:.2f}": kiln.compile(model, options={"memory_budget": budget, "speed_check": False})
        for budget in BUDGETS
    }
    runs: Mapping[str, nn.Module] = {EAGER: model, **compiled}
    saved: dict[str, int] = {}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name, run in runs.items():
        run(x).square().mean().backward()  # compiles
        before = held_memory()[0]
        loss = run(x).square().mean()
        saved[name] = held_memory()[0] - before
        del loss
    known = {tensor.untyped_storage().data_ptr() for tensor in (x, *model.parameters())}
    saved[EAGER] = saved_by_eager(lambda: model(x).square().mean(), known)
    for _ in range(samples):
        for name, run in runs.items():
            start = time.process_time()
            run(x).square().mean().backward()
            seconds[name].append(time.process_time() - start)
    return {name: (saved[name], median(seconds[name])) for name in runs}


def run(samples: int, json: Path | None, picture: Path | None) -> int:
    found = measured(samples)
    print(f"{'budget':8}  {'saved MB':>8}  {'step ms':>8}")
    for name, (size, seconds) in found.items():
        print(f"{name:8}  {size / 1e6:8.1f}  {seconds * 1e3:8.1f}")
    if json is not None:
        write_data(json, {"columns": "bytes saved, seconds of a step", "candidates": found})
    if picture is not None:
        draw(picture, found)
    return 0


def draw(path: Path, found: Mapping[str, tuple[int, float]]) -> None:
    figure = load_required("matplotlib.figure", purpose="--plot").Figure(figsize=(5, 3.2))
    axes = figure.subplots()
    budgets = [point for name, point in found.items() if name != EAGER]
    axes.plot([size / 1e6 for size, _ in budgets], [seconds * 1e3 for _, seconds in budgets], "o-", label="Kiln")
    for name, (size, seconds) in found.items():
        if name == EAGER:
            axes.plot([size / 1e6], [seconds * 1e3], "s", label=EAGER)
        else:
            axes.annotate(name, (size / 1e6, seconds * 1e3), textcoords="offset points", xytext=(4, 4))
    axes.set_xlabel("saved for the backward, MB")
    axes.set_ylabel("CPU time of a step, ms")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
