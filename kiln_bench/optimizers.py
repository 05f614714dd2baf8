"""`python -m kiln bench --suite optimizer`: the step of AdamW alone, over 100 million parameters in 200 tensors.

    candidate        first call    ms a step    of fused
    fused                  0.05         65.0        1.00
    torch.compile         24.10         70.2        1.08
    kiln                   1.60         61.3        0.94

On a GPU if there is one. Steps of the candidates take turns; each has parameters and states of its own. A first call
is that of a fresh optimizer, with the kernels that the cache has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from kiln_bench.candidates import candidate
from kiln_bench.results import write_data

PARAMETERS, TENSORS = 100_000_000, 200
LARGE = 8
"""Tensors that hold most of the parameters; the others have from 1,000 to 100,000 elements."""
FUSED = "fused"


def sizes(parameters: int = PARAMETERS, tensors: int = TENSORS) -> list[int]:
    """Elements of each tensor: many small ones, odd sizes among them, and a few that share the rest."""
    small = [1_000 + 99_000 * n // tensors for n in range(tensors - LARGE)]
    return [*small, *[(parameters - sum(small)) // LARGE] * LARGE]


def optimizer_for(elements: Sequence[int], device: str, *, fused: bool) -> torch.optim.Optimizer:
    generator = torch.Generator(device).manual_seed(0)

    def drawn(size: int) -> Tensor:
        return torch.randn(size, device=device, generator=generator)

    parameters = [nn.Parameter(drawn(size)) for size in elements]
    for parameter in parameters:
        parameter.grad = drawn(parameter.numel())
    return torch.optim.AdamW(parameters, lr=1e-3, fused=fused or None)


def seconds(step: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def run(rounds: int, candidates: Sequence[str], path: Path | None, elements: Sequence[int] = ()) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    for name in (FUSED, *candidates):
        optimizer = optimizer_for(elements or sizes(), device, fused=name == FUSED)
        chosen = candidate("eager" if name == FUSED else name, None)
        chosen.prepare()
        steps[name] = chosen.compile(optimizer.step)
        first[name] = seconds(steps[name], device)
        for _ in range(2):  # states exist from the second step on
            seconds(steps[name], device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(seconds(step, device))
    middle = {name: 1e3 * median(found) for name, found in times.items()}
    print(f"{'candidate':<16} {'first call':>10} {'ms a step':>12} {'of fused':>10}")
    for name, ms in middle.items():
        print(f"{name:<16} {first[name]:>10.2f} {ms:>12.2f} {ms / middle[FUSED]:>10.2f}")
    if path is not None:
        write_data(path, {"device": device, "first_seconds": first, "ms": middle})
    return 0
