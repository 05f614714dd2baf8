"""`python -m kiln bench --suite products`: rates of 16-bit matrix products by the alignment of their rows, on a GPU.

    rows of            median TFLOP/s (from .. to)
    16 bytes               689 (540 .. 761)
    4 bytes                228 (172 .. 262)
    2 bytes                121 (88 .. 152)
    copy 4.2 TB/s; 95 % of the small products lose at most 6 us of what is predicted

Every size of a grid is measured in three alignments, forward and both gradients. A rate is the median over the products
that take long enough for their arithmetic to count. `kiln.graph.passes.align_costs.Rates` holds what a sweep found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import final

import torch
from torch import Tensor

from kiln.support.records import dataclass
from kiln_bench.bandwidth import seconds_of
from kiln_bench.results import write_data

ROWS, DEPTHS, COLUMNS = (512, 2048, 4096, 8192), (512, 1024, 2048), (1000, 3072, 8192, 30520, 50256)
"""M, K and N, all multiples of 8."""
ALIGNMENTS = {"16 bytes": 0, "4 bytes": 2, "2 bytes": 1}
"""Alignment of rows -> elements that N has more."""
WAYS = ("forward", "gradient of x", "gradient of w")
SHORTEST = 50e-6
"""Seconds of the aligned product, below which launching and memory blur its rate."""
SMALL = 50e-6
"""Seconds of a predicted saving for which a few microseconds count."""
CERTAIN = 0.95


@final
@dataclass(frozen=True, slots=True)
class MeasuredProduct:
    """x[m, k] @ w[k, n] with n a multiple of 8, or one of its gradients; seconds by alignment."""

    m: int
    k: int
    n: int
    way: str
    seconds: dict[str, float]

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n


@final
@dataclass(frozen=True, slots=True)
class FoundRates:
    """Operations and bytes per second; `least`: seconds."""

    rates: dict[str, float]
    spread: dict[str, tuple[float, float]]
    memory: float
    least: float


def operands(m: int, k: int, n: int, way: str) -> tuple[Tensor, Tensor]:
    x, w, grad = (torch.randn(sizes, device="cuda", dtype=torch.bfloat16) for sizes in ((m, k), (k, n), (m, n)))
    return {"forward": (x, w), "gradient of x": (grad, w.t()), "gradient of w": (x.t(), grad)}[way]


def measured(samples: int) -> Iterator[MeasuredProduct]:
    for m, k, n, way in itertools.product(ROWS, DEPTHS, COLUMNS, WAYS):
        seconds: dict[str, float] = {}
        for name, more in ALIGNMENTS.items():
            left, right = operands(m, k, n + more, way)
            seconds[name] = seconds_of(lambda left=left, right=right: left @ right, samples)  # type: ignore[misc]
        yield MeasuredProduct(m, k, n, way, seconds)


def fitted(products: list[MeasuredProduct], memory: float) -> FoundRates:
    long = [product for product in products if product.seconds["16 bytes"] >= SHORTEST]
    by_name = {name: [product.flops / product.seconds[name] for product in long] for name in ALIGNMENTS}
    rates = {name: median(found) for name, found in by_name.items()}
    tenths = {name: quantiles(found, n=10) for name, found in by_name.items()}
    spread = {name: (found[0], found[-1]) for name, found in tenths.items()}
    return FoundRates(rates, spread, memory, overprediction(products, rates, memory))


def overprediction(products: list[MeasuredProduct], rates: dict[str, float], memory: float) -> float:
    """How much less than predicted the small products save by being aligned, in nearly all cases."""
    found: list[float] = []
    for product in products:
        moved = 2 * (product.m * product.k + product.k * product.n + product.m * product.n) / memory
        aligned = max(product.flops / rates["16 bytes"], moved)
        for name in ("4 bytes", "2 bytes"):
            predicted = max(product.flops / rates[name], moved) - aligned
            if predicted < SMALL:
                found.append(predicted - (product.seconds[name] - product.seconds["16 bytes"]))
    found.sort()
    return found[int(CERTAIN * len(found))]


def run(samples: int, json: Path | None) -> int:
    source, target = (torch.empty(1 << 27, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    memory = 2 * source.nbytes / seconds_of(lambda: target.copy_(source), samples)
    products = list(measured(samples))
    found = fitted(products, memory)
    print(f"{'rows of':14} median TFLOP/s (from .. to)")
    for name, rate in found.rates.items():
        low, high = found.spread[name]
        print(f"{name:14} {rate / 1e12:10.0f} ({low / 1e12:.0f} .. {high / 1e12:.0f})")
    print(
        f"copy {memory / 1e12:.1f} TB/s; {CERTAIN:.0%} of the small products lose at most {found.least * 1e6:.0f} us "
        "of what is predicted"
    )
    if json is not None:
        points = [line_of(product) for product in products]
        fit = {"rates": found.rates, "spread": found.spread, "memory": memory, "least": found.least}
        write_data(
            json, {**fit, "columns": f"m, k, n, way, seconds with rows of {', '.join(ALIGNMENTS)}", "products": points}
        )
    return 0


def line_of(product: MeasuredProduct) -> str:
    sizes = f"{product.m} {product.k} {product.n} {product.way.replace(' ', '-')}"
    return f"{sizes} {' '.join([f'{seconds:.4g}' for seconds in product.seconds.values()])}"
