"""Modules under function transforms, also such whose own parameters have no memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, stack_module_state, vmap

import kiln
from kiln.pipeline.session import KilnWarning


def test_a_module_that_could_be_repeated_within_levels() -> None:
    """Arguments are wrappers there, which the record of repeated layers does not know."""
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(2, 3)
    compiled = kiln.compile(lambda x: vmap(jacrev(net))(x), fullgraph=True)
    torch.testing.assert_close(compiled(x), vmap(jacrev(net))(x))


def test_an_ensemble_over_a_module_without_memory() -> None:
    nets = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)) for _ in range(3)]
    parameters, buffers = stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")

    def call(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = functional_call(base, (parameters, buffers), (x,))
        return result

    def ensemble(x: Tensor) -> Tensor:
        return vmap(call, in_dims=(0, 0, None))(parameters, buffers, x)

    compiled = kiln.compile(ensemble, fullgraph=True)
    for size in (2, 5):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), torch.stack([net(x) for net in nets]))
    compiled(x).sum().backward()
    for name, parameter in parameters.items():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape, name


def test_a_tensor_without_memory_is_not_computed_with() -> None:
    compiled = kiln.compile(lambda x: x + 1)
    with pytest.warns(KilnWarning, match="it is a meta tensor"):
        assert compiled(torch.ones(2, device="meta")).device.type == "meta"
