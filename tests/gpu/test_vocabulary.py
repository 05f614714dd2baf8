"""Rows as long as a vocabulary, 50257 columns: softmax and losses in one pass, padded products, also with symbols."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import kiln
from tests.codegen_triton.special_rows import SPECIAL, special_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda"
WORDS = 50257


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_softmax(dtype: torch.dtype) -> None:
    x = special_rows(dtype, WORDS, 300).to(DEVICE)
    rounding = 1e-5 if dtype == torch.float32 else 2**-7
    for function in (torch.softmax, torch.log_softmax):
        got, expected = kiln.compile(lambda x, f=function: f(x, 1), fullgraph=True)(x), function(x.float(), 1)
        torch.testing.assert_close(got.float(), expected, rtol=rounding, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy(dtype: torch.dtype) -> None:
    x = special_rows(dtype, WORDS, 300)[SPECIAL:].to(DEVICE).requires_grad_()
    target = torch.randint(0, WORDS, (len(x),), device=DEVICE)
    target[3] = -100
    found = []
    for function in (F.cross_entropy, kiln.compile(F.cross_entropy, fullgraph=True)):
        loss = function(x.float(), target)
        found.append((loss, *torch.autograd.grad(loss, x)))
    rounding = 1e-5 if dtype == torch.float32 else 2**-7
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=rounding, atol=1e-7)


def head(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The head of a language model."""
    logits = F.linear(x, weight)
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten()), logits


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_language_model_head(dynamic: bool) -> None:
    """With symbols one variant suffices; its results have eager's strides."""
    torch.manual_seed(0)
    weight = (torch.randn(WORDS, 768) / 28).bfloat16().to(DEVICE).requires_grad_()
    compiled = kiln.compile(head, fullgraph=True, dynamic=dynamic)
    for batch, length in ((4, 256), (3, 301), (8, 512)):
        x = torch.randn(batch, length, 768, device=DEVICE).bfloat16().requires_grad_()
        target = torch.randint(0, WORDS, (batch, length), device=DEVICE)
        found = []
        for function in (head, compiled):
            loss, logits = function(x, weight, target)
            assert logits.stride() == (length * WORDS, WORDS, 1)
            found.append((loss, logits.detach(), *torch.autograd.grad(loss * 1000, [x, weight])))
        for expected, got in zip(*found, strict=True):
            torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-3)
            assert got.stride() == expected.stride()
