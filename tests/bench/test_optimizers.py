"""The suite of optimizer steps, on few parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln_bench import optimizers


def test_sizes() -> None:
    found = optimizers.sizes()
    assert len(found) == optimizers.TENSORS
    assert abs(sum(found) - optimizers.PARAMETERS) < optimizers.LARGE
    assert any(size % 2 for size in found)


def test_candidates_take_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    assert optimizers.run(2, ["kiln"], path, elements=[3, 64, 100]) == 0
    assert set(json.loads(path.read_text())["ms"]) == {"fused", "kiln"}
    assert "kiln" in capsys.readouterr().out
