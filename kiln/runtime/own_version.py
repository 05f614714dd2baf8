"""The versions of tensors, by which autograd sees that they were changed in place."""

from __future__ import annotations

import torch


def with_own_version(shared: torch.Tensor, changes: int) -> torch.Tensor:
    """`shared.data`, in whose memory autograd does not see changes; the program has changed it in place so often."""
    made = shared.data
    if changes:
        torch._C._autograd._unsafe_set_version_counter((made,), (changes,))
    return made


def raise_version(tensor: torch.Tensor, by: torch.Tensor) -> None:
    """Count changes of `tensor` that a region has made; `by`: an integer."""
    changes = int(by)
    if changes and not tensor.is_inference():
        torch._C._autograd._unsafe_set_version_counter((tensor,), (tensor._version + changes,))
