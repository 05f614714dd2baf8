"""One tensor as two arguments of a call: the compiler failed on `conv2d(x, x)`, whose passes look for the weight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import kiln

Function = Callable[[torch.Tensor], torch.Tensor]

CALLS: dict[str, Function] = {
    "conv2d": lambda x: F.conv2d(x, x, padding=2),
    "conv1d": lambda x: F.conv1d(x.flatten(2), x.flatten(2)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, x),
    "bmm": lambda x: torch.bmm(x[0], x[0]),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "layer_norm": lambda x: F.layer_norm(x[0, 0, 0], x[0, 0, 0].shape, x[0, 0, 0], x[0, 0, 0]),
    "linear": lambda x: F.linear(x[0, 0], x[0, 0], x[0, 0, 0]),
    "baddbmm": lambda x: torch.baddbmm(x[0], x[0], x[0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_tensor_twice(name: str) -> None:
    call = CALLS[name]
    torch.manual_seed(0)
    x, y = (torch.randn(6, 6, 20, 20).requires_grad_() for _ in range(2))
    y.data.copy_(x.data)
    expected, found = call(x), kiln.compile(call, fullgraph=True)(y)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    expected.sum().backward()
    found.sum().backward()
    torch.testing.assert_close(y.grad, x.grad, rtol=1e-4, atol=1e-2)
