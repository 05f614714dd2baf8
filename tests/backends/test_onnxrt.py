"""ONNX Runtime as a backend."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import kiln
from kiln.backends.onnxrt import OnnxRuntime
from tests.backends.models import Mixed, check_inference_of_any_batch
from tests.backends.operators import taken

pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
pytestmark = pytest.mark.unrecorded


def test_what_it_takes(golden: Callable[..., None]) -> None:
    golden(taken(OnnxRuntime()))


def test_inference_of_any_batch() -> None:
    model = check_inference_of_any_batch("onnxrt")
    with torch.no_grad():
        (note,) = kiln.explain(model, backend="onnxrt")(torch.randn(2, 3, 8, 8)).notes
    assert note == "onnxrt: 1 parts, 56 of 56 nodes"


def test_training() -> None:
    model, x = Mixed(), torch.randn(2, 3, 8, 8)
    twin = copy.deepcopy(model)
    compiled = kiln.compile(model, backend="onnxrt")
    for _ in range(2):
        for one, other in ((compiled, model), (twin, twin)):
            optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
            one(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-5)


def test_constant_weights_that_change() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    compiled = kiln.compile(model, backend=OnnxRuntime(constant_weights=True))
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(2):
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x))
            model[0].weight.mul_(2)
        model[0].weight = nn.Parameter(torch.randn(8, 4))
        torch.testing.assert_close(compiled(x), model(x))
