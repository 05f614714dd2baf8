"""The rates of padded products: how a sweep becomes rates, and that the cost model has those of the newest sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.graph.passes.align_costs import Rates
from kiln_bench.products import MeasuredProduct, fitted

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def test_rates_are_medians_of_the_products_that_take_long() -> None:
    speeds = {"16 bytes": 600e12, "4 bytes": 200e12, "2 bytes": 100e12}
    long = [MeasuredProduct(8192, 2048, n, "forward", {}) for n in (8192, 30520, 50256)]
    products = [
        MeasuredProduct(p.m, p.k, p.n, p.way, {name: p.flops / speed for name, speed in speeds.items()}) for p in long
    ]
    products += [
        MeasuredProduct(512, 512, 1000, "forward", {"16 bytes": 12e-6, "4 bytes": 13e-6, "2 bytes": 14e-6})
        for _ in range(40)
    ]
    found = fitted(products, memory=4e12)
    assert found.rates == pytest.approx(speeds)
    # 0.52 GFLOP in the time of 2.6 MB aligned, 5.2 us at the odd rate: 4.4 us predicted, 2 us measured.
    assert found.least == pytest.approx(4.4e-6 - 2e-6, rel=0.1)


def test_the_cost_model_has_the_rates_of_the_newest_sweep() -> None:
    found = json.loads(sorted(RESULTS.glob("*-gpu-products.json"))[-1].read_text())
    model, rates = Rates(), found["rates"]
    assert [model.aligned, model.even, model.odd, model.memory, model.least] == pytest.approx(
        [rates["16 bytes"], rates["4 bytes"], rates["2 bytes"], found["memory"], found["least"]], rel=0.02
    )
