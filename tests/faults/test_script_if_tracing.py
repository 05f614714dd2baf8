"""Functions that become TorchScript only under `torch.jit.trace`, as in torchvision's detectors: each call broke."""

from __future__ import annotations

import torch
from torch import Tensor

import kiln


@torch.jit.script_if_tracing
def shifted(boxes: Tensor, classes: Tensor) -> Tensor:
    if boxes.numel() == 0:
        return boxes
    offsets = classes.to(boxes) * (boxes.max() + 1)
    return boxes + offsets[:, None]


def test_they_are_interpreted() -> None:
    boxes, classes = torch.rand(5, 4), torch.arange(5)
    compiled = kiln.compile(lambda b, c: shifted(b, c) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(boxes, classes), shifted(boxes, classes) * 2)
