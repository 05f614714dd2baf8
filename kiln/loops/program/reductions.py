"""What each `ReduceOp` means on real tensors: reduced along dimensions, scanned, combined into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kiln.loops.program.nodes import ReduceOp
from kiln.tensor.dtypes import extremes

Tensor = torch.Tensor

COMBINE: dict[ReduceOp, Callable[[Tensor, Tensor], Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PROD: torch.mul,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.ANY: torch.logical_or,
    ReduceOp.ALL: torch.logical_and,
}

SCAN: dict[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: torch.cumsum,
    ReduceOp.PROD: torch.cumprod,
    ReduceOp.MAX: lambda x, dim: torch.cummax(x, dim).values,
    ReduceOp.MIN: lambda x, dim: torch.cummin(x, dim).values,
}


def reduce_start(op: ReduceOp, dtype: torch.dtype) -> bool | int | float:
    if op in (ReduceOp.SUM, ReduceOp.ANY):
        return False if dtype == torch.bool else 0
    if op in (ReduceOp.PROD, ReduceOp.ALL):
        return True if dtype == torch.bool else 1
    least, greatest = extremes(dtype)
    return least if op in (ReduceOp.MAX, ReduceOp.ARGMAX) else greatest


def reduced(value: Tensor, op: ReduceOp, dims: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`value` combined over `dims`, which stay with size 1. Floating-point sums are computed in double precision."""
    if op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN):
        return _arg_reduced(value, op, dims[0])
    if any(value.shape[dim] == 0 for dim in dims):
        shape = [1 if dim in dims else size for dim, size in enumerate(value.shape)]
        return torch.full(shape, reduce_start(op, dtype), dtype=dtype, device="cpu")
    if op is ReduceOp.SUM:
        wide = value.double() if dtype.is_floating_point else value.to(torch.int64)
        return wide.sum(tuple(dims), keepdim=True).to(dtype)
    for dim in dims:
        value = getattr(torch, op.value)(value, dim, keepdim=True)
    return value.to(dtype)


def _arg_reduced(value: Tensor, op: ReduceOp, dim: int) -> Tensor:
    """The first of equals; NaN wins (torch leaves open which of equals it returns)."""
    best = (torch.amax if op is ReduceOp.ARGMAX else torch.amin)(value, dim, keepdim=True)
    hit = (value == best) | (value.isnan() & best.isnan() if value.is_floating_point() else False)
    return hit.to(torch.int8).argmax(dim, keepdim=True)


def put(target: Tensor, at: tuple[Tensor, ...], value: Tensor, combine: ReduceOp | None) -> None:
    """target[at] = value, or combined into it."""
    if not value.numel():
        return
    value = value.to(target.dtype)
    if not at:
        target.copy_(value.reshape(()) if combine is None else COMBINE[combine](target, value.reshape(())))
        return
    if combine is None:
        target[tuple(torch.broadcast_tensors(*at, value)[:-1])] = value
        return
    flat = torch.zeros((), dtype=torch.int64, device="cpu")
    for position, size in zip(at, target.shape, strict=True):
        flat = flat * size + position
    flat, value = torch.broadcast_tensors(flat, value)
    memory = target.reshape(-1).clone()
    memory.scatter_reduce_(0, flat.reshape(-1), value.reshape(-1), combine.value)
    target.copy_(memory.view(target.shape))


def accumulator_dtype(op: ReduceOp, out: torch.dtype) -> torch.dtype:
    """Sums and products of narrow floating-point numbers are accumulated in float32."""
    narrow = out.is_floating_point and out.itemsize < 4 and op in (ReduceOp.SUM, ReduceOp.PROD)
    return torch.float32 if narrow else out
