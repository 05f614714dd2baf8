"""Results of a region that the program makes in inference mode: the plan runs in the mode of the caller."""

from __future__ import annotations

import torch


def as_inference_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor in the memory of `tensor`."""
    if tensor.is_inference():
        return tensor
    with torch.inference_mode():
        if tensor.is_conj() or tensor.is_neg():
            return tensor.clone()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
