"""`importlib.util.find_spec` inside, as libraries ask whether others are installed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types

import pytest
import torch
from torch import Tensor

import kiln


def doubled_with(x: Tensor, name: str) -> Tensor:
    return x * 2 if importlib.util.find_spec(name) is not None else x + 1


@pytest.mark.parametrize("name", ["json", "torch.nn", "no_such_package"])
def test_one_graph(name: str) -> None:
    compiled = kiln.compile(doubled_with, options={"cache": False}, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2), name), doubled_with(torch.ones(2), name))
    assert compiled.report().compiles == 1


def test_a_package_that_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kiln.compile(doubled_with, options={"cache": False}, fullgraph=True)
    assert compiled(torch.ones(1), "late_package").item() == 2
    module = types.ModuleType("late_package")
    module.__spec__ = importlib.machinery.ModuleSpec("late_package", None)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "late_package", module)
        assert compiled(torch.zeros(1), "late_package").item() == 0
    assert compiled(torch.zeros(1), "late_package").item() == 1


def test_a_package_whose_parent_is_missing_raises() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        kiln.compile(doubled_with, options={"cache": False})(torch.ones(1), "no_such_package.part")
