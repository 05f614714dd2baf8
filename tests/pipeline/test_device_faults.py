"""What a GPU rejects when a region is loaded: a code, eager's results, and no leaks."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.build.cubins import NoTriton, TritonRefused
from kiln.pipeline.session import KilnWarning
from kiln.plan.errors import KernelDoesNotFit, KernelTooLarge, NoDeviceMemory, NoDeviceRuntime
from kiln.support.errors import KilnError

FAULTS: dict[str, KilnError] = {
    "KILN4104": NoTriton(count=3),
    "KILN4105": TritonRefused(symbol="k", message="it says why"),
    "KILN4010": NoDeviceRuntime(kernel="k", reason="libcuda.so.1 cannot be opened"),
    "KILN4011": KernelDoesNotFit(kernel="k", reason="the driver does not take it"),
    "KILN4012": KernelTooLarge(kernel="k", reason="too much shared memory"),
    "KILN4014": NoDeviceMemory(kernel="k", reason="out of memory"),
}


def program(x: Tensor) -> Tensor:
    return torch.tanh(x * 2).sum(-1)


@pytest.mark.parametrize("code", FAULTS)
@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
def test_the_region_runs_eager(code: str, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise FAULTS[code]

    monkeypatch.setattr("kiln.pipeline.compiled_plan.make_executor", refuse)
    fast = kiln.compile(program)
    x = torch.randn(4, 8, requires_grad=train)
    with pytest.warns(KilnWarning, match=code):
        y = fast(x)
    assert torch.equal(y, program(x)) and torch.equal(fast(x), y), "said once"
    if train:
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(program(x).sum(), x)[0])
    gone = [weakref.ref(tensor) for tensor in (x, y)]
    FAULTS[code].__traceback__ = None
    del x, y
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_whoever_wants_the_whole_graph_gets_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise FAULTS["KILN4011"]

    monkeypatch.setattr("kiln.pipeline.compiled_plan.make_executor", refuse)
    with pytest.raises(KernelDoesNotFit, match="KILN4011"):
        kiln.compile(program, fullgraph=True)(torch.randn(4))
