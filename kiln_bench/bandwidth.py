"""`python -m kiln bench --suite bandwidth`: the memory bandwidth that single kernels reach on a GPU.

    pattern           forward GB/s (of copy)     backward GB/s (of copy)
    layer_norm             4100 (0.95)                3900 (0.90)

The bytes of a pattern are the least that must move: each argument read once, each result written once; in the backward
also what the forward saved. They are compared with a copy of a tensor of the same size. bf16, 256 MB per tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

import kiln.api as api
from kiln.support.records import dataclass
from kiln_bench.candidates import candidate
from kiln_bench.results import write_data

ROWS, COLUMNS = 32768, 4096
"""A tensor of 256 MB in bf16."""
REPEATS = 10


def pointwise(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (COLUMNS,), weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (COLUMNS,), weight, 1e-6)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), target)


@final
@dataclass(frozen=True, slots=True)
class KernelPattern:
    """`forward`, `backward`: tensors of full size that must move."""

    function: Callable[..., Tensor]
    vectors: int
    forward: int
    backward: int
    target: bool = False


PATTERNS: Mapping[str, KernelPattern] = {
    "pointwise": KernelPattern(pointwise, 1, 2, 3),
    "layer_norm": KernelPattern(layer_norm, 2, 2, 3),
    "rms_norm": KernelPattern(rms_norm, 1, 2, 3),
    "softmax": KernelPattern(softmax, 0, 2, 3),
    "cross_entropy": KernelPattern(cross_entropy, 0, 1, 2, target=True),
}


def inputs_of(pattern: KernelPattern) -> tuple[Tensor, ...]:
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    values = (make(ROWS, COLUMNS), *(make(COLUMNS) for _ in range(pattern.vectors)))
    return (*values, torch.randint(0, COLUMNS, (ROWS,), device="cuda")) if pattern.target else values


def seconds_of(run: Callable[[], object], samples: int) -> float:
    """Median over `samples` of the mean of `REPEATS` runs, by the GPU's clock."""
    for _ in range(3):
        run()
    found: list[float] = []
    for _ in range(samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPEATS):
            run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3 / REPEATS)
    return float(median(found))


def measure(pattern: KernelPattern, compiled: Callable[..., object], samples: int) -> tuple[float, float]:
    """Bytes per second of forward and backward."""
    inputs = inputs_of(pattern)
    size = ROWS * COLUMNS * 2
    with torch.no_grad():
        forward = seconds_of(lambda: compiled(*inputs), samples)
    result = compiled(*inputs)
    assert isinstance(result, Tensor)
    tangent = torch.randn_like(result)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    backward = seconds_of(lambda: torch.autograd.grad(result, wanted, tangent, retain_graph=True), samples)
    return pattern.forward * size / forward, pattern.backward * size / backward


def run(samples: int, names: list[str], json: Path | None) -> int:
    """Print the table. `names`: the compilers."""
    source, target = (torch.empty(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    copy = 2 * source.nbytes / seconds_of(lambda: target.copy_(source), samples)
    print(f"copy {copy / 1e9:.0f} GB/s")
    shares: dict[str, dict[str, float]] = {}
    for title, pattern in PATTERNS.items():
        for name in names:
            chosen = candidate(name, None)
            chosen.prepare()
            api.reset()
            forward, backward = measure(pattern, chosen.compile(pattern.function), samples)
            shares[f"{title}/{name}"] = {"forward": forward / copy, "backward": backward / copy}
            print(
                f"{title:14} {name:14} forward {forward / 1e9:6.0f} GB/s ({forward / copy:.2f})"
                f"   backward {backward / 1e9:6.0f} GB/s ({backward / copy:.2f})",
                flush=True,
            )
    if json is not None:
        write_data(json, {"copy": copy, "patterns": shares})
    return 0
