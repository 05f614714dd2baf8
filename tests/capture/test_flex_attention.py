"""flex_attention in a compiled function: one graph, and values, gradients and layouts as in eager mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

import kiln
from kiln.api import report_of

BIAS, SLOPES = torch.randn(2, 8, 8), torch.randn(2)
LOWER = torch.ones(8, 8, dtype=torch.bool).tril()


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Any:
    return i >= j


def block_mask() -> BlockMask:
    return create_block_mask(causal, None, None, 8, 8, device="cpu")


MASK = block_mask()


def masked_score(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")))


def slopes(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + SLOPES[h] * (j - i), block_mask=MASK, scale=0.3)


def table(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s / 20) * 20 + BIAS[h, i, j])


def only_mask(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, block_mask=MASK)


def groups(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k[:, :1], v[:, :1], enable_gqa=True)


def sums(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, block_mask=MASK, return_aux=AuxRequest(lse=True))


def reference(program: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """The same by hand."""
    scale = 0.3 if program is slopes else 0.5
    if program is groups:
        k, v = (x[:, :1].expand(-1, 2, -1, -1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * scale
    place = torch.arange(8)
    if program is slopes:
        scores = scores + SLOPES[:, None, None] * (place - place[:, None])
    if program is table:
        scores = torch.tanh(scores / 20) * 20 + BIAS
    if program not in (table, groups):
        scores = scores.masked_fill(~LOWER, -float("inf"))
    out = scores.softmax(-1) @ v
    return (out, (scores.logsumexp(-1), None)) if program is sums else out


TRACED = [masked_score, slopes, table, only_mask, groups, sums]


@pytest.mark.parametrize(
    ("program", "backend"),
    [*[(program, "eager") for program in TRACED], (slopes, "kiln"), (only_mask, "kiln")],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_one_graph(program: Any, backend: str) -> None:
    compiled = kiln.compile(program, fullgraph=True, backend=backend)
    inputs = [torch.randn(1, 8, 2, 4, requires_grad=True) for _ in range(3)]
    q, k, v = (x.transpose(1, 2) for x in inputs)
    found, wanted = compiled(q, k, v), reference(program, q, k, v)
    torch.testing.assert_close(tuple(found) if program is sums else found, wanted)
    out = found[0] if program is sums else found
    assert out.stride() == q.stride()
    expected = wanted[0] if program is sums else wanted
    gradients = [torch.autograd.grad(result.cos().sum(), inputs) for result in (out, expected)]
    torch.testing.assert_close(*gradients)
    assert report_of(compiled).compiles == 1


def test_numbers_beside_batched_elements() -> None:
    """Batching rules promote the numbers beside tensors that have no dimension within the batch."""

    def program(x: Tensor) -> Any:
        return torch.vmap(lambda s: torch.tanh(s / 20) * 3 + 1.5)(x), torch.vmap(lambda s: s * 2 > 1)(x.long())

    x = torch.randn(5) * 9
    torch.testing.assert_close(kiln.compile(program, backend="eager", fullgraph=True)(x), program(x))


def test_errors_are_torchs() -> None:
    def program(q: Tensor, k: Tensor) -> Any:
        return flex_attention(q, k, k)

    for shape, error in (((1, 1, 8, 4), ValueError), ((8, 4), NotImplementedError), ((2, 2, 8, 4), ValueError)):
        with pytest.raises(error):
            kiln.compile(program, backend="eager")(torch.randn(1, 2, 8, 4), torch.randn(shape))
