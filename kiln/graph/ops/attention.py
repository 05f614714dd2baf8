"""Fused attention: ATen calls with predicted sizes and layouts. Which of them is recorded is eager's choice.

    _scaled_dot_product_flash_attention_for_cpu(q: f32[2, 4, 6, 8], ...)     =     (f32[2, 4, 6, 8], f32[2, 4, 6])

q is (batch, heads, length, width). Some kernels lay the result out as q, some as (batch, length, heads, width).
The CUDA rules were observed on an H200 with torch 2.11.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.library import Pair, fresh
from kiln.graph.ops.promotion import OPMATH
from kiln.graph.ops.registry import decompose, library
from kiln.graph.ops.sizes import matching_sizes
from kiln.graph.prims.meta import preserved
from kiln.symbolic import Int, ceil_div, rel_le
from kiln.tensor.spec import CPU, TensorSpec

Results = tuple[Node | Int | None, ...]
Specs = tuple[TensorSpec | None, ...]


def scalar(dtype: torch.dtype, device: torch.device) -> TensorSpec:
    return TensorSpec(dtype, (), (), 0, device)


# CPU.


@lru_cache(maxsize=1)
def _attention_follows_query() -> bool:
    """Whether the result has the layout of the query (torch 2.13), found by running it; before, heads are inside."""
    query = torch.zeros(1, 2, 3, 4, device="cpu")
    output = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, query, query)[0]
    return bool(output.is_contiguous())


def heads_inside(x: TensorSpec, sizes: tuple[Int, ...]) -> TensorSpec:
    """A (batch, heads, length, width) tensor laid out as (batch, length, heads, width)."""
    _, heads, length, width = sizes
    return x.with_view(sizes, (length * heads * width, width, heads * width, 1), 0)


@library("_scaled_dot_product_flash_attention_for_cpu.default")
def cpu_attention(
    e: Emit, query: Node, key: Node, value: Node, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Node | None = None, scale: float | None = None,
) -> Pair:  # fmt: skip
    spec = query.tensor
    batch, heads, length, _ = spec.sizes
    _check_sizes(e, spec, key.tensor, value.tensor)
    output = preserved(e.oracle, spec) if _attention_follows_query() else heads_inside(spec, spec.sizes)
    sums = TensorSpec(
        OPMATH.get(spec.dtype, spec.dtype), (batch, heads, length), (length * heads, 1, heads), 0, spec.device
    )
    return output, sums


def _check_sizes(e: Emit, query: TensorSpec, key: TensorSpec, value: TensorSpec) -> None:
    """The kernel reads as many values as there are keys, and divides by the number of heads."""
    if not matching_sizes(e, key.sizes[:3], value.sizes[:3]) or not e.oracle.expect(rel_le(1, query.sizes[1])):
        raise RuntimeError(f"attention: keys {list(key.sizes)} and values {list(value.sizes)} are not one for one")


@library("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def cpu_attention_backward(
    e: Emit, grad: Node, query: Node, key: Node, value: Node, *args: object, **kwargs: object
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    specs = [heads_inside(x.tensor, x.tensor.sizes) for x in (query, key, value)]
    return specs[0], specs[1], specs[2]


# CUDA. Integer results (lengths) are known here and have no node.


@decompose("_scaled_dot_product_flash_attention.default")
def flash_attention(
    e: Emit, query: Node, key: Node, value: Node, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> Results:  # fmt: skip
    spec, lengths = query.tensor, (query.tensor.sizes[2], key.tensor.sizes[2])
    mask = fresh(spec, (0,))
    parts = (
        preserved(e.oracle, spec), fresh(spec, spec.sizes[:3], torch.float32), None, None, None, None,
        fresh(spec, (2,), torch.uint64), scalar(torch.uint64, spec.device), mask,
    )  # fmt: skip
    args = (query, key, value, dropout_p, is_causal, return_debug_mask)
    made = e.library(f"{SDPA}_flash_attention.default", args, {"scale": scale}, parts, opaque=dropout_p > 0)
    return _with_lengths(made, lengths)


@decompose("_scaled_dot_product_cudnn_attention.default")
def cudnn_attention(
    e: Emit, query: Node, key: Node, value: Node, attn_bias: Node | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> Results:  # fmt: skip
    spec, lengths = query.tensor, (query.tensor.sizes[2], key.tensor.sizes[2])
    output = spec.with_sizes((*spec.sizes[:3], value.tensor.sizes[3]))
    same = value.tensor.sizes[3] == spec.sizes[3]
    seed = scalar(torch.int64, spec.device)
    sums = fresh(spec, (*spec.sizes[:3], 1), torch.float32) if compute_log_sumexp else None
    parts = (preserved(e.oracle, spec) if same else output, sums, None, None, None, None, seed, seed, None)
    args = (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, return_debug_mask)
    made = e.library(f"{SDPA}_cudnn_attention.default", args, {"scale": scale}, parts, opaque=dropout_p > 0)
    return _with_lengths(made, lengths)


SDPA = "aten._scaled_dot_product"
FIRST_LENGTH = 4
"""Position of the query's length among the results; the key's follows."""


def _with_lengths(made: Results, lengths: tuple[Int, Int]) -> Results:
    return (*made[:FIRST_LENGTH], *lengths, *made[FIRST_LENGTH + 2 :])


@decompose("_scaled_dot_product_efficient_attention.default")
def efficient_attention(
    e: Emit, query: Node, key: Node, value: Node, attn_bias: Node | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> Results:  # fmt: skip
    """The sums are padded to a multiple of 32 rows; seed and offset are on the CPU."""
    spec = query.tensor
    batch, heads, length, _ = spec.sizes
    rows = ceil_div(length, 32) * 32 if compute_log_sumexp else 0
    parts = (
        heads_inside(spec, (batch, heads, length, value.tensor.sizes[3])),
        fresh(spec, (batch, heads, rows), torch.float32), scalar(torch.int64, CPU), scalar(torch.int64, CPU),
    )  # fmt: skip
    args = (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal)
    return e.library(f"{SDPA}_efficient_attention.default", args, {"scale": scale}, parts, opaque=dropout_p > 0)


@library("_scaled_dot_product_flash_attention_backward.default", "_scaled_dot_product_cudnn_attention_backward.default")
def attention_backward(
    e: Emit, grad: Node, query: Node, key: Node, value: Node, *args: object, **kwargs: object
) -> Specs:
    return tuple([preserved(e.oracle, x.tensor) for x in (query, key, value)])


@library("_scaled_dot_product_efficient_attention_backward.default")
def efficient_attention_backward(
    e: Emit, grad: Node, query: Node, key: Node, value: Node, bias: Node | None, *args: object, **kwargs: object
) -> Specs:
    """`grad_input_mask` selects the gradients."""
    mask = cast(Sequence[bool], kwargs.get("grad_input_mask") or args[5])
    specs = [heads_inside(x.tensor, x.tensor.sizes) for x in (query, key, value)]
    to_bias = None if bias is None or not mask[3] else bias.tensor.with_sizes(bias.tensor.sizes)
    return (*specs, to_bias)
