"""Ops left to ATen: sorting, selection, embedding gradients. Rules predict dtype, sizes and strides.

aten.topk(x: f32[4, 8], 2)     =>     (f32[4, 2], i64[4, 2])
"""

from __future__ import annotations

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.creation import packed
from kiln.graph.ops.data_movement import not_negative
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.reductions import extreme_axes
from kiln.graph.ops.registry import decompose, library
from kiln.graph.ops.sizes import axis_of
from kiln.graph.prims.meta import preserved
from kiln.symbolic import Int, rel_le
from kiln.tensor.spec import TensorSpec, contiguous_strides

Pair = tuple[TensorSpec, TensorSpec]


def fresh(x: TensorSpec, sizes: tuple[Int, ...], dtype: torch.dtype | None = None) -> TensorSpec:
    """A contiguous tensor on the device of `x`."""
    return TensorSpec(dtype or x.dtype, sizes, contiguous_strides(sizes), 0, x.device)


@library("_ctc_loss_backward.Tensor")
def ctc_loss_backward(e: Emit, grad: Node, log_probs: Node, *args: object, **kwargs: object) -> TensorSpec:
    return fresh(log_probs.tensor, log_probs.tensor.sizes)


# Sorting and selection.


@library("sort.default", "sort.stable")
def sort(e: Emit, x: Node, dim: int = -1, *args: object, **kwargs: object) -> Pair:
    axis_of(dim, x.tensor.rank)
    values = preserved(e.oracle, x.tensor)
    return values, values.with_dtype(torch.int64)


@library("topk.default")
def topk(e: Emit, x: Node, k: Int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    spec = x.tensor
    sizes = spec.sizes
    if spec.rank:
        axis = axis_of(dim, spec.rank)
        if not e.oracle.expect(rel_le(k, sizes[axis])):
            raise RuntimeError("selected index k out of range")
        sizes = (*sizes[:axis], k, *sizes[axis + 1 :])
    return fresh(spec, sizes), fresh(spec, sizes, torch.int64)


@library("mode.default", "median.dim", "nanmedian.dim")
def mode(e: Emit, x: Node, dim: int = -1, keepdim: bool = False) -> Pair:
    """A value and its index along a dimension, which must not be empty."""
    spec, sizes = x.tensor, x.tensor.sizes
    if spec.rank:
        (axis,) = extreme_axes(e, "mode", x, dim)
        sizes = (*sizes[:axis], *((1,) if keepdim else ()), *sizes[axis + 1 :])
    return fresh(spec, sizes), fresh(spec, sizes, torch.int64)


@library("kthvalue.default")
def kthvalue(e: Emit, x: Node, k: Int, dim: int = -1, keepdim: bool = False) -> Pair:
    size = x.tensor.sizes[axis_of(dim, x.tensor.rank)] if x.tensor.rank else 1
    made = mode(e, x, dim, keepdim)
    if (isinstance(k, int) and k <= 0) or not e.oracle.expect(rel_le(k, size)):
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {dim}")
    return made


@library("median.default", "nanmedian.default")
def median(e: Emit, x: Node) -> TensorSpec:
    return fresh(x.tensor, ())


@library("searchsorted.Tensor")
def searchsorted(e: Emit, sequence: Node, x: Node, *, out_int32: bool = False, **_: object) -> TensorSpec:
    return fresh(x.tensor, x.tensor.sizes, torch.int32 if out_int32 else torch.int64)


@library("bucketize.Tensor")
def bucketize(e: Emit, x: Node, boundaries: Node, *, out_int32: bool = False, right: bool = False) -> TensorSpec:
    return fresh(x.tensor, x.tensor.sizes, torch.int32 if out_int32 else torch.int64)


@library("affine_grid_generator.default")
def affine_grid(e: Emit, theta: Node, size: tuple[Int, ...], align_corners: bool) -> TensorSpec:
    """A point for each element of an image of `size`: [rows, channels, height, width]."""
    return fresh(theta.tensor, (size[0], *size[2:], len(size) - 2))


@library("segment_reduce.default")
def segment_reduce(
    e: Emit,
    x: Node,
    reduce: str,
    *,
    lengths: Node | None = None,
    indices: Node | None = None,
    offsets: Node | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: object = None,
) -> TensorSpec:
    """A row for each segment. The operator raises where the lengths do not fit, as in eager."""
    sizes = x.tensor.sizes[axis + 1 :]
    if lengths is not None:
        return fresh(x.tensor, (*lengths.tensor.sizes, *sizes))
    if offsets is None:
        raise UnsupportedOp(op="segment_reduce", reason="it has neither lengths nor offsets")
    *front, ends = offsets.tensor.sizes
    return fresh(x.tensor, (*front, ends - 1, *sizes))


@library("_segment_reduce_backward.default")
def segment_reduce_backward(e: Emit, grad: Node, output: Node, x: Node, reduce: str, **_: object) -> TensorSpec:
    return fresh(x.tensor, x.tensor.sizes)


# Embedding.


@decompose("embedding.default")
def embedding(
    e: Emit, weight: Node, indices: Node, padding_idx: Int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Node:
    if weight.tensor.rank != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices.tensor.dtype not in (torch.int64, torch.int32):
        raise RuntimeError("embedding(): Expected indices of dtype int32/int64")
    return packed(e, e.node("index", weight, not_negative(e, indices), axes=(0,)))


@library("embedding_dense_backward.default")
def embedding_backward(
    e: Emit, grad: Node, indices: Node, num_weights: Int, padding_idx: Int, scale_grad_by_freq: bool
) -> TensorSpec:
    return fresh(grad.tensor, (num_weights, grad.tensor.sizes[-1]))
