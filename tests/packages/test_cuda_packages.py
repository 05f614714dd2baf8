"""Packages for GPUs: compiled by Triton without a GPU, run on the null device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kiln
import kiln.api.exporting  # the compiler
from kiln.graph.ir.parse import parse_graph
from kiln.native import _executor
from kiln.packages.errors import ForeignPackage
from kiln.programs.call.errors import BadExportArgument
from kiln.programs.call.shapes import ShapeRules, SymbolRange
from kiln.programs.call.signature import ArgumentLeaf, ProgramSignature, ResultLeaf, StateInput
from kiln.programs.call.tree import LEAF, Tree
from tests.packages.samples import members
from tests.runtime.test_null_device import null_device  # noqa: F401  a fixture

GRAPH = """graph(%0: f32[64 @cuda:0] "scale", %1: f32[rows, 64 @cuda:0] "x"):
    %2: f32[rows, 64 @cuda:0] = mul(%1, %0)
    %3: f32[rows @cuda:0] = sum(%2, axes=(1,))
    return %2, %3
"""


def scaled() -> kiln.Program:
    signature = ProgramSignature(
        (StateInput("scale", "parameter"),),
        (ArgumentLeaf("x", 1),),
        (ResultLeaf("output", 0), ResultLeaf("output", 1)),
        ("x",),
        Tree(tuple, (Tree(tuple, (LEAF,)), Tree(dict))),
        Tree(tuple, (LEAF, LEAF)),
    )
    rules = ShapeRules((SymbolRange("rows", 1, 64),))
    return kiln.Program("scaled", parse_graph(GRAPH), signature, rules, {"scale": torch.ones(64)})


@pytest.mark.skipif(torch.cuda.is_available(), reason="the package would run")
def test_a_package_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, null_device: None) -> None:  # noqa: F811
    pytest.importorskip("triton")
    path = tmp_path / "m"
    with pytest.raises(BadExportArgument, match="cuda:sm_90"):
        scaled().package(path)
    digest = scaled().package(path, "cuda:sm_90")
    cubins = [data for name, data in members(path).items() if name.startswith("cubin/")]
    assert len(cubins) == 1 and b"\x7fELF" in cubins[0] and "kernels.so" not in members(path)
    with pytest.raises(ForeignPackage, match="a GPU for cuda:sm_90, here is no GPU"):
        kiln.load(path, digest=digest)
    monkeypatch.setattr("kiln.packages.loader.check_device", lambda target: None)
    monkeypatch.setattr("kiln.packages.loader.on_device", lambda tensor, device: tensor)
    loaded = kiln.load(path, digest=digest)
    found, sums = loaded.executor(loaded.state["scale"], torch.randn(40, 64))
    assert found.shape == (40, 64) and sums.shape == (40,)
    log = _executor.take_null_log()
    assert "load k_" in log and "launch k_" in log
