"""`python -m kiln bench --suite reductions`: reductions of large tensors over each axis, against eager on a GPU.

    argmax f32[8, 65536, 16] over 1      1900 GB/s (0.95 of reading)    eager 310 GB/s

The bytes are those of the argument, read once; `reading` is the bandwidth of a copy. About 256 MB per tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

import kiln.api as api
from kiln_bench.bandwidth import seconds_of
from kiln_bench.candidates import candidate
from kiln_bench.results import write_data

ELEMENTS = 1 << 26
SHAPES: tuple[tuple[int, ...], ...] = (
    (64, -1, 1024), (8, -1, 16), (1, -1, 64), (-1, 2, 4096), (-1, 4, 7), (-1, 64, 49), (-1, 1000, 1000), (-1, 512, 3),
    (8, -1, 64), (16, -1, 33), (64, -1, 1023), (4, 65537, 129), (1, -1, 7),
)  # fmt: skip
"""Three axes; -1 makes the tensor `ELEMENTS` large."""
Reduction = Callable[[Tensor, int], Tensor]
OPS: Mapping[str, Reduction] = {
    "sum": lambda x, axis: x.sum(axis),
    "amax": lambda x, axis: x.amax(axis),
    "prod": lambda x, axis: x.prod(axis),
    "any": lambda x, axis: (x > 3).any(axis),
    "argmax": lambda x, axis: x.argmax(axis),
    "norm": lambda x, axis: torch.linalg.vector_norm(x, dim=axis),
    "var": lambda x, axis: x.var(axis),
    "logsumexp": lambda x, axis: x.logsumexp(axis),
    "softmax": lambda x, axis: x.softmax(axis),
}


def sizes_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    known = math.prod(size for size in shape if size > 0)
    return tuple([size if size > 0 else ELEMENTS // known for size in shape])


def run(samples: int, names: list[str], json: Path | None) -> int:
    """Print a line per reduction. `names`: the compilers."""
    reading = copy_bandwidth(samples)
    print(f"copy {reading / 1e9:.0f} GB/s")
    found: dict[str, dict[str, float]] = {}
    for shape in SHAPES:
        x = torch.randn(sizes_of(shape), device="cuda")
        for op, function in OPS.items():
            for axis in range(3):
                title = f"{op} {list(x.shape)} over {axis}"
                found[title] = measure(function, x, axis, samples, names)
                rates = [f"{name} {rate / 1e9:.0f} GB/s ({rate / reading:.2f})" for name, rate in found[title].items()]
                print(f"{title:40} {'   '.join(rates)}", flush=True)
    if json is not None:
        write_data(json, {"copy": reading, "bytes per second": found})
    return 0


def copy_bandwidth(samples: int) -> float:
    """Bytes per second that a copy reads and writes."""
    source, target = (torch.empty(ELEMENTS, device="cuda") for _ in range(2))
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), samples)


def measure(function: Reduction, x: Tensor, axis: int, samples: int, names: list[str]) -> dict[str, float]:
    """Bytes of `x` per second, of eager and of each compiler."""
    rates = {"eager": x.nbytes / seconds_of(lambda: function(x, axis), samples)}
    for name in names:
        chosen = candidate(name, None)
        chosen.prepare()
        api.reset()
        compiled = chosen.compile(lambda given: function(given, axis))
        rates[name] = x.nbytes / seconds_of(lambda compiled=compiled: compiled(x), samples)  # type: ignore[misc]
    return rates
