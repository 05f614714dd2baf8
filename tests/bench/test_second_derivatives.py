"""The script that times gradients of gradients: what it times is right."""

from __future__ import annotations

import pytest

from tools import second_derivatives


@pytest.mark.parametrize("name", ["PINN, 64 points", "forces in the loss"])
def test_gradients_are_within_the_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_derivatives, "ALTERNATIONS", 1)
    row = second_derivatives.measured(name)
    assert row["error"] <= 1 and set(row["seconds"]) == {"eager", "model", "step"}
