"""Calls and compiles leak nothing: objects, references, libraries, files, cache entries, memory.

The quick tests count exactly; the slow ones run 10^6 calls and 10^4 compiles and look at resident memory too.
Figures of the slow ones: `pytest -m slow -s tests/leaks`.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln
from kiln.support.errors import KilnError
from tests.leaks.measure import growth

SLACK = 6
"""Of a count: what the interpreter itself keeps more or less of (free lists, a growing set of the collector).
A third of the fewest rounds of a test: what every second round leaves is found."""
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One thread, its own temporary files; objects from before are not counted."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    torch.set_num_threads(before)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def inference(model: Any, x: Tensor) -> Callable[[], object]:
    def call() -> None:
        with torch.no_grad():
            model(x)

    return call


def training(model: Any, x: Tensor) -> Callable[[], object]:
    def step() -> None:
        model(x).sum().backward()
        model.zero_grad()

    return step


def raising(model: Any, x: Tensor) -> Callable[[], object]:
    """Gradients that are never computed, and a second backward that fails."""

    def step() -> None:
        model(x)
        loss = model(x).sum()
        loss.backward()
        with pytest.raises(RuntimeError):
            loss.backward()

    return step


CALLS = {"inference": inference, "training": training, "raising": raising}


def check_calls(kind: str, count: int) -> float:
    model, x = kiln.compile(mlp()), torch.randn(3, 8)
    watched = [model, x, *model.parameters(), type(model)]
    grown, resident = growth(CALLS[kind](model, x), count, warm=20, watched=watched, slack=SLACK)
    assert grown == {}
    return resident * count


@pytest.mark.parametrize("kind", CALLS)
def test_calls(kind: str) -> None:
    check_calls(kind, 200)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("inference", 1_000_000), ("training", 100_000)])
def test_many_calls(kind: str, count: int) -> None:
    resident = check_calls(kind, count)
    print(f"{count} calls, {kind}: {resident / MEGABYTE:.2f} MiB more resident memory")
    assert resident < 2 * MEGABYTE


# One text per kind of capture, since compiles keep different things.
PROGRAMS = {
    "pointwise": "lambda x: torch.sin(x) * 2 + 1",
    "break": "lambda x: x + 1 if x.sum() > 0 else x - 1",
    "closure": "(lambda scale: lambda x: (x * scale).relu())(3)",
    "module": "nn.Sequential(nn.Linear(4, 4), nn.ReLU())",
    "random": "lambda x: torch.nn.functional.dropout(x, 0.5)",
}


def fresh(text: str, folder: Path, *, cache: bool, train: bool = False, backend: str = "kiln") -> Callable[[], object]:
    """Compiles a new function made from the same text, calls it for two sizes and drops it."""

    def work() -> None:
        function = eval(text, {"torch": torch, "nn": nn})
        options = {"cache": cache, "cache_dir": str(folder)}
        compiled = kiln.compile(function, options=options, backend=backend)
        for size in (2, 3):
            result = compiled(torch.ones(size, 4, requires_grad=train))
            if train:
                result.sum().backward()

    return work


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_compiles(text: str, train: bool, cache: bool, tmp_path: Path) -> None:
    grown, _ = growth(fresh(text, tmp_path, cache=cache, train=train), 18, warm=4, slack=SLACK)
    assert grown == {}


def test_compiles_of_a_user_backend(tmp_path: Path) -> None:
    grown, _ = growth(fresh(PROGRAMS["break"], tmp_path, cache=False, backend="eager"), 12, warm=4, slack=SLACK)
    assert grown == {}


def test_compiles_that_fail(tmp_path: Path) -> None:
    """Errors in the compiler or in the user's function keep no frame alive."""

    def work() -> None:
        with pytest.raises(KilnError):
            kiln.compile(lambda x: x + len(str(x.sum().item())), fullgraph=True)(torch.ones(3))

    grown, _ = growth(work, 12, warm=4, slack=SLACK)
    assert grown == {}


@pytest.mark.slow
@pytest.mark.parametrize("cache", [False, True])
def test_many_compiles(cache: bool, tmp_path: Path) -> None:
    count = 10_000
    work = fresh(PROGRAMS["pointwise"], tmp_path, cache=cache)
    grown, resident = growth(work, count, warm=50, slack=SLACK)
    print(f"{count} compiles, cache {cache}: {resident * count / MEGABYTE:.2f} MiB more resident memory")
    assert grown == {}
    assert resident * count < 8 * MEGABYTE


def test_what_is_kept_is_found() -> None:
    kept: list[Any] = []
    grown, _ = growth(lambda: kept.append(kiln.compile(lambda x: x)), 10, warm=2, slack=SLACK)
    assert grown["object kiln.pipeline.session.CompileSession"] == grown["reports"] == 10
