"""Real tensors made from literals become constants of the graph, keyed by content.

torch.tensor(2.0)        =>   constant(value=2.0, dtype=f32, device=cpu)
torch.tensor([1, 2])     =>   constant_tensor(key="c3f1..."), its data in the table
"""

from __future__ import annotations

import hashlib
from typing import final

import torch

from kiln.graph.ops import Emit
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.graph.trace.storage_view import StorageView, new_storage
from kiln.tensor.content import elements
from kiln.tensor.spec import TensorSpec

LARGEST = 1 << 20
"""Bytes of the largest constant tensor."""


def spec_of_real(tensor: torch.Tensor) -> TensorSpec:
    """The static spec of a real tensor."""
    return TensorSpec(
        tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.device
    )


def content_key(tensor: torch.Tensor) -> str:
    """Equal for tensors of equal dtype, sizes and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.size())}".encode())
    digest.update(elements(tensor))
    return digest.hexdigest()[:32]


@final
class Constants:
    """The constant tensors of a graph, by content key."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def bake(self, emit: Emit, tensor: torch.Tensor) -> StorageView:
        """A new storage that holds the value of a real tensor."""
        spec = spec_of_real(tensor)
        if tensor.numel() * tensor.element_size() > LARGEST:
            raise UnsupportedInput(name="constant", reason=f"it is too large for a constant of the graph ({spec})")
        if spec.rank == 0 and not spec.dtype.is_complex:
            return new_storage(emit.number(tensor.item(), spec.dtype, spec.device))
        key = content_key(tensor)
        self.tensors[key] = tensor.detach().contiguous().clone()
        return new_storage(emit.add(PRIMS["constant_tensor"], (), {"key": key}, spec.with_sizes(spec.sizes)))
