"""A number that is read of a tensor on a GPU, or of one on the CPU, has no device: the tensor that it is put into says
where the result lies. No GPU is needed: inputs with a dimension are taken to be on one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln
from kiln.graph.trace import inputs
from kiln.graph.trace.constants import spec_of_real
from kiln.tensor.spec import TensorSpec

GPU = torch.device("cuda", 0)
PROGRAMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "full": (lambda x, y: torch.full((2,), x.sum().item()), "cpu"),
    "full of a formula": (lambda x, y: torch.full((2,), x.sum().item() * 2), "cpu"),
    "full_like on a GPU": (lambda x, y: torch.full_like(x, y.item()), "cuda"),
    "full_like": (lambda x, y: torch.full_like(torch.ones(3), x.sum().item()), "cpu"),
    "new_full": (lambda x, y: x.new_full((3,), y.item()), "cuda"),
    "scalar_tensor": (lambda x, y: torch.scalar_tensor(x.sum().item()), "cpu"),
    "tensor": (lambda x, y: torch.tensor([x.sum().item(), 1.0]), "cpu"),
    "fill_": (lambda x, y: torch.ones(3).fill_(x.sum().item()), "cpu"),
    "fill_ by a tensor": (lambda x, y: torch.ones(3).fill_(x.sum()), "cpu"),
    "fill_ on a GPU": (lambda x, y: torch.ones_like(x).fill_(y), "cuda"),
    "fill on a GPU": (lambda x, y: torch.fill(torch.ones_like(x), y), "cuda"),
    "product": (lambda x, y: torch.ones(3) * x.sum().item(), "cpu"),
    "product on a GPU": (lambda x, y: x * y.item(), "cuda"),
    "power": (lambda x, y: x.sum().item() ** torch.ones(3), "cpu"),
    "comparison": (lambda x, y: torch.ones(3) == x.sum().item(), "cpu"),
    "where": (lambda x, y: torch.where(torch.ones(3) > 0, x.sum().item(), 0.0), "cpu"),
    "masked_fill": (lambda x, y: torch.ones(3).masked_fill(torch.ones(3) > 0, x.sum().item()), "cpu"),
    "clamp": (lambda x, y: torch.ones(3).clamp(max=x.sum().item()), "cpu"),
    "lerp": (lambda x, y: torch.lerp(torch.ones(3), torch.zeros(3), x.sum().item()), "cpu"),
    "softplus": (lambda x, y: F.softplus(torch.ones(3), beta=x.sum().item()), "cpu"),
    "addmm": (lambda x, y: torch.addmm(torch.ones(2), *torch.ones(2, 2, 2), alpha=x.sum().item()), "cpu"),
    "two numbers": (lambda x, y: (x.sum().item() + y.item()) * torch.ones(2), "cpu"),
}


def as_on_a_gpu(tensor: Tensor) -> TensorSpec:
    spec = spec_of_real(tensor)
    return replace(spec, device=GPU) if spec.rank else spec


@pytest.mark.parametrize("name", PROGRAMS)
def test_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "spec_of_real", as_on_a_gpu)
    program, device = PROGRAMS[name]
    made = kiln.export(program, (torch.randn(4), torch.tensor(2.0)), level="prims")
    value = made.graph.outputs[0].value
    assert isinstance(value.spec, TensorSpec) and value.spec.device.type == device
