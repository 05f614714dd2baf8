"""Kernels have events in torch.profiler, named after the torch calls that they compute."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import kiln


def test_kernels_and_library_calls_are_events_in_order() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.softmax(nn.functional.gelu(x) @ w, dim=-1)

    compiled, x = kiln.compile(program), torch.randn(64, 64)
    compiled(x, x)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        compiled(x, x)
    names = [event.name for event in profiler.events() if "resolve" not in event.name]
    assert names == ["kiln: torch.nn.functional.gelu", "aten::mm", "kiln: torch.nn.functional.softmax"]
    assert all(event.cpu_time_total > 0 for event in profiler.events() if event.name.startswith("kiln"))


def test_kernels_of_a_backward_have_events() -> None:
    compiled, x = kiln.compile(lambda x: (x.sin() * x).sum()), torch.ones(100, requires_grad=True)
    compiled(x).backward()
    loss = compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        loss.backward()
    assert any(event.name.startswith("kiln: ") for event in profiler.events())
