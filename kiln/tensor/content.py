"""The elements of a real tensor as bytes.

elements(torch.tensor([1, 2], dtype=torch.int16))   =>   b"\\x01\\x00\\x02\\x00"
"""

from __future__ import annotations

import torch


def elements(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order, whatever the strides of `tensor`."""
    return bytes(element_view(tensor))


def element_view(tensor: torch.Tensor) -> memoryview:
    """The same without a copy, where the tensor has its elements in this order."""
    flat = tensor.detach()
    if flat.device.type != "cpu" or not flat.is_contiguous() or flat.is_conj() or flat.is_neg():
        # `contiguous` would keep the strides of axes of size 1
        dense = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        flat = dense.copy_(flat)
    view: memoryview = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().data
    return view
