"""Copies, joins and indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import Emit
from kiln.graph.ops.pointwise import copy
from kiln.graph.ops.promotion import result_dtype
from kiln.graph.ops.registry import decompose
from kiln.graph.ops.sizes import axis_of, filled
from kiln.graph.prims.meta import format_strides
from kiln.graph.prims.spec import TensorSpec
from kiln.symbolic import Int

_FORMATS = {
    torch.contiguous_format: "contiguous",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}


def strides_for(e: Emit, x: TensorSpec, memory_format: torch.memory_format | None) -> tuple[Int, ...]:
    """Strides of a copy of `x` in a memory format; None and preserve keep that of `x`."""
    if memory_format is None or memory_format is torch.preserve_format:
        return e.preserved_strides(x)
    return format_strides(x.sizes, _FORMATS[memory_format])  # type: ignore[arg-type]


@decompose("clone.default")
def clone(e: Emit, x: Node, *, memory_format: torch.memory_format | None = None) -> Node:
    return e.node("clone", x, strides=strides_for(e, x.tensor, memory_format))


@decompose("contiguous.default")
def contiguous(e: Emit, x: Node, *, memory_format: torch.memory_format = torch.contiguous_format) -> Node:
    return clone(e, x, memory_format=memory_format)


@decompose("_unsafe_view.default")
def unsafe_view(e: Emit, x: Node, size: Sequence[Int]) -> Node:
    return e.node("view", x, sizes=filled(e, x.tensor, size))


@decompose("_to_copy.default")
def to_copy(
    e: Emit,
    x: Node,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Node:
    strides = strides_for(e, x.tensor, memory_format)
    made = copy(e, x) if dtype is None or dtype is x.tensor.dtype else e.convert(x, dtype)
    return made if made.tensor.strides == strides else e.node("clone", made, strides=strides)


@decompose("cat.default")
def cat(e: Emit, tensors: Sequence[Node], dim: int = 0) -> Node:
    kept = [one for one in tensors if one.tensor.sizes != (0,)] or list(tensors[:1])
    dtype = result_dtype(list(tensors))
    parts = [e.convert(one, dtype) for one in kept]
    return e.node("cat", *parts, axis=axis_of(dim, parts[0].tensor.rank))
