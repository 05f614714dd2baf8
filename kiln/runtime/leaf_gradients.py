"""What transformed code does for a backward inside of a region.

loss.backward(); return loss      loss.requires_grad is True; loss.backward() again raises as in eager
optimizer.zero_grad()             the old gradients are freed before the region computes the new ones
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def with_freed_history(result: torch.Tensor, message: str) -> torch.Tensor:
    """`result`, in the same memory, with a gradient function that raises a RuntimeError."""
    raises = torch._C._functions.DelayedError(message.encode(), 1)
    made: torch.Tensor = raises(result.detach().requires_grad_())
    return made


def drop_gradients(bindings: Sequence[torch.Tensor], positions: Sequence[int]) -> None:
    """Set `.grad` of the tensors at `positions` to None."""
    for position in positions:
        bindings[position].grad = None
