"""flex_attention in a compiled function: one graph, and values, gradients and layouts as in eager mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
)

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


def within_documents(q: Tensor, k: Tensor, v: Tensor) -> Any:
    size, document = q.shape[2], torch.arange(q.shape[2]) // 3

    def same(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Any:
        return document[i] == document[j]

    mask = create_block_mask(and_masks(causal, same), None, None, size, size, device="cpu", BLOCK_SIZE=(8, 4))
    dense = create_mask(causal, 1, 1, size, size, "cpu")
    counts = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.q_indices, mask.to_dense(), dense
    return flex_attention(q, k, v, block_mask=mask), *counts


def test_block_masks_that_are_made_inside() -> None:
    fast = kiln.compile(within_documents, fullgraph=True, options={"cache": False})
    for size in (8, 13, 21, 32):
        q, k, v = (torch.randn(2, 2, size, 4) for _ in range(3))
        for mine, eager in zip(fast(q, k, v), within_documents(q, k, v), strict=True):
            torch.testing.assert_close(mine, eager)
    assert report_of(fast).compiles == 2
