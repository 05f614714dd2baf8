"""Arguments of `autograd.Function.apply` that mix objects of the program with tensors: a back end got a fake tensor."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


class Config:
    factor = 3


CONFIG = Config()
Pair = namedtuple("Pair", "config value")


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Any, y: Tensor) -> Tensor:
        config, value = pair
        while isinstance(value, tuple):
            value = value[-1]
        ctx.factor = config.factor
        return value * config.factor + y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, grads[0] * ctx.factor


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tensor": lambda x, y: Scale.apply((CONFIG, x * 2), y),
    "named tuple": lambda x, y: Scale.apply(Pair(CONFIG, x * 2), y),
    "nested": lambda x, y: Scale.apply((CONFIG, (CONFIG, x * 2)), y),
    "no tensor": lambda x, y: Scale.apply(Pair(CONFIG, (CONFIG, 2)), y),
    "size": lambda x, y: Scale.apply((CONFIG, x.shape[0]), y),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_like_eager(name: str) -> None:
    program = PROGRAMS[name]
    for backend in (lambda graph, inputs: graph.forward, "eager"):
        compiled = kiln.compile(program, backend=backend, dynamic=True, options={"cache": False})
        for size in (3, 4):
            x, y = torch.ones(size), torch.ones(size, requires_grad=True)
            result = compiled(x, y)
            torch.testing.assert_close(result, program(x, y))
            torch.testing.assert_close(torch.autograd.grad(result.sum(), y)[0], torch.full((size,), 3.0))
