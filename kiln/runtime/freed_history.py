"""Results whose gradients a backward inside of the region has computed and freed.

loss.backward(); return loss      loss.requires_grad is True; loss.backward() again raises as in eager
"""

from __future__ import annotations

import torch


def with_freed_history(result: torch.Tensor, message: str) -> torch.Tensor:
    """`result`, in the same memory, with a gradient function that raises a RuntimeError."""
    raises = torch._C._functions.DelayedError(message.encode(), 1)
    made: torch.Tensor = raises(result.detach().requires_grad_())
    return made
