"""einops, which much research code is written with: its cached recipes are read and applied in the graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import Rearrange, Reduce
from torch import Tensor, nn

import kiln


def attention(x: Tensor) -> Tensor:
    q, k, v = rearrange(x, "b n (three h d) -> three b h n d", three=3, h=2)
    scores = einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
    return rearrange(scores @ v, "b h n d -> b n (h d)")


def pooled(x: Tensor) -> Tensor:
    rows = reduce(x, "b (n two) c -> b n c", "max", two=2)
    return reduce(rows, "b n c -> b c", "mean") + repeat(x[:, 0, 0], "b -> b c", c=x.shape[-1])


def packed(x: Tensor) -> Tensor:
    token = repeat(x[0, 0], "c -> b c", b=x.shape[0])
    joined, shapes = pack([token, x], "b * c")
    first, rest = unpack(joined * 2, shapes, "b * c")
    return first + rest.sum(1)


def layers(x: Tensor) -> Tensor:
    return nn.Sequential(Rearrange("b n (h d) -> b h n d", h=3), Reduce("b h n d -> b h d", "sum"))(x)


@pytest.mark.parametrize("program", [attention, pooled, packed, layers])
def test_one_graph_for_all_batches(program: Callable[[Tensor], Tensor]) -> None:
    compiled = kiln.compile(program, fullgraph=True)
    for size in (2, 3, 5):
        x, y = (torch.arange(size * 48.0).view(size, 4, 12).div(50).requires_grad_() for _ in range(2))
        expected, found = program(x), compiled(y)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), y), torch.autograd.grad(expected.sum(), x))
    assert compiled.report().compiles <= 2
