"""`kiln.compile(mode="reduce-overhead")` against eager, whole programs on the null device."""

from __future__ import annotations

import pytest
import torch

import kiln
from kiln.api import report_of
from tests.cuda_graphs.null_device import CPU, NullDevice
from tests.cuda_graphs.scenarios import SCENARIOS, Setup, random_order


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(device: NullDevice, name: str) -> None:
    SCENARIOS[name](Setup(CPU, device))
    assert device.replays > 0


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "forward" in name or "grad" in name])
def test_scenario_with_twins(device: NullDevice, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every held result counts as large."""
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_SHARE", 1000)
    SCENARIOS[name](Setup(CPU, device))


@pytest.mark.parametrize("seed", range(8))
def test_random_orders(device: NullDevice, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_SHARE", 1000)
    random_order(Setup(CPU, device), seed)


def test_on_the_cpu_the_mode_changes_nothing() -> None:
    fast = kiln.compile(lambda x: x + 1, mode="reduce-overhead")
    for _ in range(3):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert "cpu has no graphs" in report_of(fast).text()
