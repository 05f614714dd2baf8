"""The elements of a real tensor as bytes.

elements(torch.tensor([1, 2], dtype=torch.int16))   =>   b"\\x01\\x00\\x02\\x00"
"""

from __future__ import annotations

import ctypes

import torch


def elements(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order, whatever the strides of `tensor`."""
    return bytes(element_view(tensor))


def element_view(tensor: torch.Tensor) -> memoryview:
    """The same without a copy, where the tensor has its elements in this order.

    Not by NumPy: memory that an array has seen can never be resized again.
    """
    flat = tensor.detach()
    if flat.device.type != "cpu" or not flat.is_contiguous() or flat.is_conj() or flat.is_neg():
        # `contiguous` would keep the strides of axes of size 1
        dense = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        flat = dense.copy_(flat)
    size = flat.numel() * flat.itemsize
    memory = (ctypes.c_ubyte * size).from_address(flat.data_ptr() if size else 0)
    memory.owner = flat  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")
