"""Where tensors without elements begin, and their strides, with sizes that change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import kiln
from kiln.graph.ir.parse import parse_graph
from kiln.tensor.spec import TensorSpec, eager_strides


def diagonals(x: Tensor) -> list[Tensor]:
    far = [x.diagonal(5 + x.shape[0]), x.diagonal(-9 - x.shape[0]), x.diagonal(x.shape[1])]
    return [*far, x.diagonal(2), x[1:].diagonal(3), x.diagonal(-1)]


def test_diagonals() -> None:
    compiled = kiln.compile(diagonals, dynamic=True)
    for size in (4, 5, 3, 2, 7, 1):
        x = torch.randn(size, size + 1)
        for result, expected in zip(compiled(x), diagonals(x), strict=True):
            assert torch.equal(result, expected)
            assert (result.stride(), result.storage_offset()) == (expected.stride(), expected.storage_offset())


def spec_of(text: str) -> TensorSpec:
    return parse_graph(f'graph(%0: {text} "x"):\n    return %0').inputs[0].tensor


@pytest.mark.parametrize(
    "spec, base, strides",
    [
        ("f32[s0, s1]", None, "max(s1, 1), 1"),
        ("f32[s0, 2*s1, s2]", None, "max(2*s1, 1)*max(s2, 1), max(s2, 1), 1"),
        ("f32[s0, 8]", None, "8, 1"),
        ("f32[s0, s1 | 1, s0]", "f32[s1, s0 | 1, s1]", "1, s0"),
        ("f32[s0, s2 | s1, 1]", "f32[s0, s1]", "max(s1, 1), 1"),
        ("f32[s0, 1, s1]", None, "max(s1, 1), max(s1, 1), 1"),
    ],
)
def test_strides_in_plans(spec: str, base: str | None, strides: str) -> None:
    """Of row-major tensors, and of views of them."""
    found = eager_strides(spec_of(spec), spec_of(base) if base else None)
    assert ", ".join(map(str, found)) == strides


SHAPES = [(3, 4, 2), (3, 5, 2), (0, 4, 2), (3, 0, 2), (3, 4, 0), (0, 0, 2), (3, 0, 0), (1, 0, 2)]
STRIDES: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "pointwise": lambda x: [x * 2, x + x[:1], x > 0, x.long()],
    "reductions": lambda x: [x.sum(0), x.sum(1, keepdim=True), x.mean((0, 2)), x.cumsum(1), x.softmax(-1)],
    "layouts": lambda x: [torch.cat([x, x], 1), torch.stack([x, x], 1), x.flip(0), x.roll(1, 0), x.tile(2, 1, 1)],
    "views": lambda x: [(x * 2)[:, 1:], (x * 2).flatten(1), (x * 2)[:2]],
    "views of arguments": lambda x: [x[:, 1:], x.transpose(0, 1), x[..., None], x.flip(0)],
    "products": lambda x: [x @ torch.ones(x.shape[2], 3), torch.nn.functional.linear(x, torch.ones(5, x.shape[2]))],
    "copies": lambda x: [
        each.clone() for each in (x[:, None].expand(-1, 3, -1, -1), x[:, :, :1], x.transpose(0, 2)[::2])
    ],
    "likes": lambda x: [torch.zeros_like(x[:, :, :1]), x[:, :, ::2].double()],
    "more copies": lambda x: [x[None, 1:].clone(), x[:, :, ::2].clone(), x.transpose(0, 1).clone()],
    "made": lambda x: [torch.zeros(x.shape[1], x.shape[2]), torch.ones_like(x), x.new_empty(x.shape)],
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", STRIDES)
def test_strides_beside_a_size_of_0(name: str, dynamic: bool | None) -> None:
    """An empty tensor has the strides that eager gives it: there a size of 0 counts as 1."""
    made = STRIDES[name]
    compiled = kiln.compile(made, dynamic=dynamic)
    for sizes in SHAPES:
        x = torch.randn(sizes)
        found = [(*result.shape, *result.stride()) for result in compiled(x)]
        assert found == [(*result.shape, *result.stride()) for result in made(x)], sizes


def test_channels_last_of_nothing() -> None:
    """Here eager does not count a size of 0 as 1."""
    to_last = kiln.compile(lambda x: x.to(memory_format=torch.channels_last))
    for sizes in ((2, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (0, 3, 4, 5)):
        x = torch.randn(sizes)
        assert to_last(x).stride() == x.to(memory_format=torch.channels_last).stride()


def test_pixel_unshuffle_of_nothing() -> None:
    compiled = kiln.compile(lambda x: torch.nn.functional.pixel_unshuffle(x, 2))
    for rows in (3, 4, 0, 5, 0, 1):
        x = torch.randn(rows, 2, 4, 6)
        assert compiled(x).stride() == torch.nn.functional.pixel_unshuffle(x, 2).stride()
