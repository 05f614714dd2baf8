"""What is kept between compilations is bounded; what is written of a module reads only what can be read."""

from __future__ import annotations

import pytest
from torch import nn

from kiln.loops.codegen import print_kernel as printing
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.pipeline.variant_store import module_sketch
from tests.fusion.check import TARGET, scheduled
from tests.fusion.programs import PROGRAMS


def test_printed_kernels_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "_PRINTED", {})
    monkeypatch.setattr(printing, "MOST_PRINTED", 2)
    for name in ("gelu_norm", "softmax", "rms_norm", "views", "cross_entropy"):
        for step in scheduled(PROGRAMS[name]).steps:
            if isinstance(step, KernelLaunch):
                printing.print_kernel(step.kernel, TARGET)
                assert 0 < len(printing._PRINTED) <= 2


def test_a_sketch_of_a_module_whose_sizes_are_not_known_yet() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    lines = module_sketch(model, "model")
    assert "weight torch.float32 True ()" in lines and "weight torch.float32 True (2, 3)" in lines
