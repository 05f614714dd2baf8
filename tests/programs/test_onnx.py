"""Programs as ONNX models: the text of a model, its file, and what ONNX Runtime computes from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import kiln
from kiln.onnx import write_model
from kiln.programs.onnx_file import onnx_model
from kiln.support.errors import KilnError
from kiln.support.optional import load
from tests.programs.models import Counter

BATCH, SIDE = kiln.Dim("batch", min=2, max=64), kiln.Dim("side", min=4, max=64)


class Net(nn.Module):
    """Results in a dict; sizes that are products and quotients of those of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 5)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        y = torch.relu(self.conv(image)).flatten(2).transpose(1, 2)
        places = torch.arange(y.shape[1]) % 3
        return {"scores": self.out(y).softmax(-1), "kept": y[:, :, 0] * places, "rows": y.reshape(-1, 4)}


def exported() -> kiln.Program:
    return kiln.export(Net(), (torch.randn(2, 3, 8, 9),), dynamic_shapes={"image": {0: BATCH, 3: SIDE}})


def run_onnx(path: Path, program: kiln.Program, *args: Tensor) -> list[Tensor]:
    runtime: Any = load("onnxruntime")
    session = runtime.InferenceSession(str(path))
    names = [value.name for value in session.get_inputs()]
    feed = {name: arg.numpy() for name, arg in zip(names, args, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, feed)]


def test_text(golden: Callable[..., None]) -> None:
    golden(onnx_model(exported()).text())


def test_other_runtimes_compute_it(tmp_path: Path) -> None:
    onnx: Any = pytest.importorskip("onnx", reason="the package onnx is not installed")
    pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    program, path = exported(), tmp_path / "net.onnx"
    program.save_onnx(path)
    onnx.checker.check_model(str(path), full_check=True)
    write_model(onnx_model(program), tmp_path / "apart.onnx", largest=0)
    onnx.checker.check_model(str(tmp_path / "apart.onnx"), full_check=True)
    for batch, side in ((2, 9), (3, 12), (5, 4)):
        image = torch.randn(batch, 3, 8, side)
        expected = list(program(image).values())  # type: ignore[attr-defined]
        assert_close(run_onnx(path, program, image), expected)
        assert_close(run_onnx(tmp_path / "apart.onnx", program, image), expected)


def test_what_has_no_form(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match="a call changes calls"):
        kiln.export(Counter(), (torch.randn(2, 4),)).save_onnx(tmp_path / "m.onnx")
    with pytest.raises(KilnError, match=r"`aten.median.default` has no form in ONNX"):
        kiln.export(lambda x: x.median(), (torch.randn(3),)).save_onnx(tmp_path / "m.onnx")
