"""A Python number as a region takes it.

    scale = 0.5     number_tensor(scale)   ->   tensor(0.5, dtype=float64)

Transformed code calls it for each real number that is an input of its region.
"""

from __future__ import annotations

import torch


def number_tensor(value: float) -> torch.Tensor:
    """A tensor of rank 0."""
    return torch.scalar_tensor(value, dtype=torch.float64, device="cpu")
