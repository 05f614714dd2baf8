"""`kiln.compile(mode="reduce-overhead")` against eager, whole programs on the null device."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
    """All held results count as large."""
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
    monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_SHARE", 1000)
    SCENARIOS[name](Setup(CPU, device))


@pytest.mark.parametrize("seed", range(8))
def test_random_orders(device: NullDevice, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_BYTES", 8)
        monkeypatch.setattr("kiln.runtime.cuda_graphs.graphed.TWIN_SHARE", 1000)
    random_order(Setup(CPU, device), seed)


def test_threads_with_graphs_of_their_own(device: NullDevice) -> None:
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            setup = Setup(CPU, device)
            for name in ("training_steps", "forwards_last_in_first_out"):
                SCENARIOS[name](setup)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_versions_of_results(device: NullDevice) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = (x * 2).add_(1)
        return [y.mul_(3), y[1:], x + 1]

    compiled = Setup(CPU, device).compiled(program)
    for _ in range(4):
        assert [result._version for result in compiled(torch.ones(3))] == [2, 2, 0]
    assert device.replays > 0


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.inner(x), 0.5)


def test_what_an_earlier_process_compiled_has_graphs_too(device: NullDevice, tmp_path: Path) -> None:
    setup = Setup(CPU, device)
    for loaded in (0, 1):
        torch.manual_seed(0)
        fast = setup.compiled(Dropping(), cache=True, cache_dir=str(tmp_path))
        before, seen = device.replays, []
        for _ in range(5):
            y = fast(torch.ones(3, 6))
            y.sum().backward()
            seen.append(y.detach())
        assert report_of(fast).loaded == loaded
        assert report_of(fast).graphs == 2 and device.replays == before + 8
        assert len({tuple(item.flatten().tolist()) for item in seen}) == 5


def test_on_the_cpu_the_mode_changes_nothing() -> None:
    fast = kiln.compile(lambda x: x + 1, mode="reduce-overhead")
    for _ in range(3):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert "cpu has no graphs" in report_of(fast).text()
