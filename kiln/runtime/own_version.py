"""A tensor in the memory of another whose changes autograd does not see."""

from __future__ import annotations

import torch


def with_own_version(shared: torch.Tensor, changes: int) -> torch.Tensor:
    """`shared.data`, which the program has changed in place so often."""
    made = shared.data
    if changes:
        torch._C._autograd._unsafe_set_version_counter((made,), (changes,))
    return made
