"""Attention by two products, as where torch has no fused kernel: torch's own result for the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kiln.graph.trace.attention import by_products

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": torch.rand(6, 7) > 0.5},
    "bias": {"attn_mask": torch.randn(2, 1, 6, 7)},
    "row without keys": {"attn_mask": torch.arange(6)[:, None] > torch.zeros(7)},
    "scale": {"scale": 0.3},
    "negative scale": {"scale": -0.3},
    "groups of heads": {"enable_gqa": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_by_products(name: str, dtype: torch.dtype) -> None:
    options: dict[str, Any] = dict(CASES[name])
    mask = options.get("attn_mask")
    if isinstance(mask, torch.Tensor) and mask.is_floating_point():
        options["attn_mask"] = mask.to(dtype)
    heads = 2 if name == "groups of heads" else 4
    query = torch.randn(2, 4, 6, 8, dtype=dtype)
    key, value = (torch.randn(2, heads, 7, 8, dtype=dtype) for _ in range(2))
    with sdpa_kernel(SDPBackend.MATH):
        want = scaled_dot_product_attention(query, key, value, **options)
    positional: dict[str, Any] = {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": False, **options}
    got = by_products(
        query, key, value, positional["attn_mask"], 0.0, positional["is_causal"], positional["scale"],
        positional["enable_gqa"],
    )  # fmt: skip
    assert torch.equal(got, want)
