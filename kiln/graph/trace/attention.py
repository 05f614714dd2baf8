"""`scaled_dot_product_attention` where torch has no fused kernel for it, by two products, for symbolic sizes.

    q: f32[s0, 8, 64, 32], k, v: f32[s0, 2, 64, 32]    =>    softmax(q @ k.repeat_interleave(4, 1).mT / sqrt(32)) @ v...

On CUDA that is float32 with groups of heads, float64, or more than four dimensions. Torch 2.11 makes the products in
C++ by plain sizes, as those of `products.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from kiln.graph.trace.products import matmul

FUSED = (
    torch.backends.cuda.can_use_flash_attention,
    torch.backends.cuda.can_use_efficient_attention,
    torch.backends.cuda.can_use_cudnn_attention,
)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if query.device.type == "cuda" and query.numel() and not (is_causal and attn_mask is not None):
        given = torch.backends.cuda.SDPAParams(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if not any(is_usable(given) for is_usable in FUSED):
            return by_products(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return torch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def by_products(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """As ATen's `_scaled_dot_product_attention_math`: 16-bit floats in float32, the root of the scale on both sides."""
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    q, k, v = [x.to(wide) for x in (query, key, value)]
    if is_causal:
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    if enable_gqa:
        k, v = [x.repeat_interleave(q.size(-3) // x.size(-3), -3) for x in (k, v)]
    root = math.sqrt(abs(scale) if scale is not None else 1.0 / math.sqrt(query.size(-1)))
    scores = matmul(q * (-root if scale is not None and scale < 0 else root), k.transpose(-2, -1) * root)
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=wide).masked_fill_(~mask, -math.inf)
    if mask is not None:
        scores = scores + mask.to(wide)
    weights = torch._safe_softmax(scores, -1)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, True)
    return matmul(weights, v).to(query.dtype)
