"""The elements of a real tensor as bytes.

elements(torch.tensor([1, 2], dtype=torch.int16))   =>   b"\\x01\\x00\\x02\\x00"
"""

from __future__ import annotations

import torch


def elements(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order, whatever the strides of `tensor`."""
    # `contiguous` would keep the strides of axes of size 1
    dense = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return bytes(dense.copy_(tensor.detach()).flatten().view(torch.uint8).numpy().data)
